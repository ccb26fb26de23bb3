//! A stock Postgres as a compute on a plain directory.
#![allow(dead_code, clippy::disallowed_methods)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use camino::Utf8PathBuf;
use compute::layout::Layout;
use compute::supervisor::launch;
use test_needs::Missing;
use test_postgres::process::{kill, wait_until};
use test_postgres::{Postgres, Server, run};

/// What these tests need of the machine.
pub fn machine() -> Result<Postgres, Missing> {
    test_needs::root()?;
    test_needs::file("/dev/fuse")?;
    let postgres = Postgres::find()?;
    if can_mount() { Ok(postgres) } else { Err(Missing::new("the right to mount a file system")) }
}

fn can_mount() -> bool {
    let dir = camino_tempfile::tempdir().unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(dir.path()).status();
    mounted.is_ok_and(|status| status.success())
        && Command::new("umount").arg(dir.path()).status().is_ok_and(|status| status.success())
}

/// Settings of a cluster that computes are created from. Durability is on, so that it exercises the file system too.
const SETTINGS: &str = "
fsync = on
max_wal_size = 256MB
min_wal_size = 80MB
autovacuum_naptime = 1s
checkpoint_timeout = 30s
log_min_messages = info
log_checkpoints = on
";

/// A compute on the files of the stopped server `plain`, mounted and started.
pub fn compute(plain: &Server, args: &[&str]) -> Compute {
    let place = plain.place();
    let layout = Layout::new(place.path().join("compute"));
    compute::source::directory::boot(plain.data().as_std_path(), &layout).unwrap();
    let mut serving = vec![format!("--source-directory={}", plain.data())];
    serving.extend(args.iter().map(|arg| (*arg).to_owned()));
    let data = Utf8PathBuf::try_from(layout.data()).unwrap();
    let compute = Compute { server: place.server_on(data), layout, serving };
    compute.mount();
    compute.server.start();
    compute
}

/// A new cluster, started.
pub fn cluster(postgres: &Postgres) -> Server {
    postgres.place().start("plain", SETTINGS)
}

pub struct Compute {
    pub server: Server,
    pub layout: Layout,
    serving: Vec<String>,
}

impl Compute {
    pub fn mount(&self) {
        let program = Path::new(env!("CARGO_BIN_EXE_compute-fs"));
        let mut supervisor = launch::start(program, &self.layout, &self.serving).unwrap();
        std::thread::spawn(move || supervisor.wait());
    }

    pub fn unmount(&self) {
        // A stop that takes longer kills Postgres, and the files are then not those of a clean shutdown.
        launch::stop(&self.layout, Duration::from_secs(300)).unwrap();
    }

    pub fn supervisor(&self) -> i32 {
        launch::supervisor(&self.layout).unwrap().unwrap()
    }

    pub fn daemon(&self) -> i32 {
        let text = std::fs::read_to_string(self.layout.daemon_lock()).unwrap();
        text.trim().parse().unwrap_or(0)
    }

    /// Kills the daemon and waits for the next one.
    pub fn kill_daemon(&self) {
        let old = self.daemon();
        kill(old);
        wait_until("another daemon", || ![0, old].contains(&self.daemon()));
    }

    /// Severs the connection while it is in use.
    pub fn lose_connection(&self) {
        let _ = rustix::mount::unmount(self.layout.data(), rustix::mount::UnmountFlags::FORCE);
    }

    /// Device of the mount at the data directory. The kernel reuses numbers of devices that are not [`Pin`]ned.
    pub fn device(&self) -> Option<String> {
        let data = self.layout.data();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mounts.lines().find(|line| line.split(' ').nth(4) == data.to_str())?;
        line.split(' ').nth(2).map(str::to_owned)
    }

    /// Keeps the device of the present mount alive without making the mount busy.
    pub fn pin(&self) -> Pin {
        let path = self.layout.root().with_extension("pin");
        let _ = std::fs::create_dir(&path);
        run(Command::new("mount").arg("--bind").arg(self.layout.data()).arg(&path));
        Pin { path }
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.layout.log()).unwrap()
    }
}

impl Drop for Compute {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- fs.log\n{}", self.log());
        }
        let _ = launch::stop(&self.layout, Duration::from_secs(60));
    }
}

pub struct Pin {
    path: PathBuf,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.path, rustix::mount::UnmountFlags::DETACH);
    }
}

/// The number after `label` in the output of pgbench.
pub fn figure(text: &str, label: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(label)).unwrap_or_else(|| panic!("no {label} in {text}"));
    let number: String = line.trim().chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    number.parse().unwrap()
}
