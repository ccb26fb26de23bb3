//! Room for open files and sockets, made before there are threads. The kernel's table of a process's descriptors grows
//! to the next power of two when it is full, and if threads share it, waits until none of them can still be looking at
//! the former one (`expand_fdtable` in Linux' `fs/file.c`): some 10 ms, in which whoever opens anything waits, such as
//! the first reads of a table.

use std::os::fd::AsFd;

use rustix::process::{Resource, getrlimit};

/// Descriptors for which there is room from the start, if as many are allowed: the table takes 8 bytes for each.
pub const ROOM: u64 = 8192;

/// Makes room for as many descriptors as are allowed now, [`ROOM`] at most. To be called while there is one thread.
///
/// # Errors
/// If the last one is in use. Then there is room already.
pub fn make_room(any: impl AsFd) -> std::io::Result<()> {
    let allowed = getrlimit(Resource::Nofile).current.map_or(ROOM, |allowed| allowed.min(ROOM));
    let last = i32::try_from(allowed.saturating_sub(1)).unwrap_or(i32::MAX);
    rustix::io::fcntl_dupfd_cloexec(any, last)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        line.trim().parse().unwrap()
    }

    #[test]
    fn there_is_room_for_as_many_as_are_allowed() {
        let allowed = getrlimit(Resource::Nofile).current.unwrap_or(ROOM).min(ROOM);
        make_room(std::io::stderr()).unwrap();
        assert!(room() >= allowed, "{} of {allowed}", room());
    }
}
