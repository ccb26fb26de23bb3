//! Ports of computes: each of a directory has its own, also while it is being created and others are, too.

use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;

use rustix::fs::FlockOperation;

use super::{Computes, LifecycleError, Result, io_error};
use crate::layout::Layout;

/// The first port to try.
const FIRST: u16 = 55_432;

/// Whether nobody listens on a port of loopback.
pub fn is_free(port: u16) -> bool {
    TcpListener::bind(("127.0.0.1", port)).is_ok()
}

/// A port that is neither in use nor that of another compute of the directory, by chance: whoever else looks for one at
/// the same moment, for another directory or none, finds another one.
///
/// # Errors
/// There is none, or the computes cannot be listed.
pub fn free_port(computes: &Computes) -> Result<u16> {
    let first = FIRST + (env::random::u64() % u64::from(u16::MAX - FIRST)) as u16;
    search(computes, (first..u16::MAX).chain(FIRST..first))
}

/// The first of `ports` that is neither in use nor that of another compute of the directory.
fn search(computes: &Computes, mut ports: impl Iterator<Item = u16>) -> Result<u16> {
    let mut taken: Vec<u16> = computes.list()?.into_iter().filter_map(|(_, config)| Some(config.ok()?.port)).collect();
    let entries = std::fs::read_dir(&computes.dir).into_iter().flatten().flatten();
    taken.extend(entries.filter_map(|entry| {
        let reserved = std::fs::read_to_string(reservation(entry.path())).ok()?;
        reserved.trim().parse::<u16>().ok()
    }));
    let found = ports.find(|port| !taken.contains(port) && is_free(*port));
    found.ok_or_else(|| LifecycleError::Refused("no port is free: give one".to_owned()))
}

/// Where the port of a compute is that is being created: its configuration is written last.
fn reservation(root: PathBuf) -> PathBuf {
    root.join("port")
}

/// The port of a compute that is about to be created, whose directory exists: the requested one, or a free one.
pub(super) fn reserve(computes: &Computes, layout: &Layout, wanted: Option<u16>) -> Result<u16> {
    if let Some(port) = wanted {
        return Ok(port);
    }
    // One at a time, whichever process.
    let dir = File::open(&computes.dir).map_err(io_error(&computes.dir))?;
    rustix::fs::flock(&dir, FlockOperation::LockExclusive).map_err(|error| io_error(&computes.dir)(error.into()))?;
    let (port, path) = (search(computes, FIRST..u16::MAX)?, reservation(layout.root().to_owned()));
    std::fs::write(&path, port.to_string()).map_err(io_error(&path))?;
    Ok(port)
}

/// Ends the reservation of a compute whose configuration is written.
pub(super) fn settle(layout: &Layout) -> Result<()> {
    let path = reservation(layout.root().to_owned());
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error(&path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn those_who_are_created_at_once_have_different_ports() {
        let dir = camino_tempfile::tempdir().unwrap();
        let computes = Computes::new(dir.path());
        let ports = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for number in 0..8 {
                let (computes, ports) = (&computes, &ports);
                scope.spawn(move || {
                    let layout = computes.layout(&format!("c{number}")).unwrap();
                    std::fs::create_dir(layout.root()).unwrap();
                    ports.lock().unwrap().push(reserve(computes, &layout, None).unwrap());
                });
            }
        });
        let mut ports = ports.into_inner().unwrap();
        ports.sort();
        ports.dedup();
        assert_eq!(ports.len(), 8, "{ports:?}");
        let layout = computes.layout("c0").unwrap();
        settle(&layout).unwrap();
        settle(&layout).unwrap();
        assert_eq!(reserve(&computes, &layout, Some(7)).unwrap(), 7, "who asks for one gets it");
    }
}
