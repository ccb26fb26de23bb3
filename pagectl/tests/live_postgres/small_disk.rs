//! A file system that fills up quickly.

use std::process::Command;

use camino::{Utf8Path, Utf8PathBuf};
use test_needs::Missing;

/// A tmpfs, unmounted when dropped.
pub struct SmallDisk {
    at: Utf8PathBuf,
}

impl SmallDisk {
    /// Mounts one of `mib` MiB at `dir`, which is created.
    pub fn mount(dir: &Utf8Path, mib: u32) -> Result<Self, Missing> {
        std::fs::create_dir(dir).unwrap();
        let size = format!("size={mib}m");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "tmpfs", dir.as_str()]).status();
        match mounted {
            Ok(status) if status.success() => Ok(Self { at: dir.to_owned() }),
            _ => Err(Missing::new("the right to mount a file system")),
        }
    }

    pub fn resize(&self, mib: u32) {
        let options = format!("remount,size={mib}m");
        assert!(Command::new("mount").args(["-o", &options, self.at.as_str()]).status().unwrap().success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", self.at.as_str()]).status();
    }
}
