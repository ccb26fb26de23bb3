//! Identifies our processes: a process id may have been reused, or forged where we look for ours.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};

use crate::private::Trust;

/// What a process does for a compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `compute-fs run`.
    Supervisor,
    /// `compute-fs serve`.
    Daemon,
}

/// One of our processes. Its id cannot be reused while this is held.
pub(crate) struct Process {
    pid: Pid,
    handle: Option<OwnedFd>,
}

impl Process {
    /// The process `pid`, if it has the role `role` for the compute in the directory `root`.
    pub(crate) fn find(pid: Pid, role: Role, root: &Path, trust: Trust) -> io::Result<Option<Self>> {
        // First hold it, then check it.
        let Some(process) = Self::hold(pid)? else { return Ok(None) };
        Ok(is(pid, role, root, trust).then_some(process))
    }

    /// The process `pid`, if it is a server that works in `data`, the data directory of a compute.
    pub(crate) fn find_server(pid: Pid, data: &Path, trust: Trust) -> io::Result<Option<Self>> {
        let Some(process) = Self::hold(pid)? else { return Ok(None) };
        let ours = owner(pid).is_some_and(|uid| trust.has(uid)) && works_in(pid, data) != Some(false);
        Ok(ours.then_some(process))
    }

    fn hold(pid: Pid) -> io::Result<Option<Self>> {
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(handle) => Ok(Some(Self { pid, handle: Some(handle) })),
            Err(Errno::SRCH) => Ok(None),
            // Linux before 5.3.
            Err(Errno::NOSYS) => Ok(Some(Self { pid, handle: None })),
            Err(error) => Err(error.into()),
        }
    }

    pub(crate) fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal. It is not an error if the process has ended.
    pub(crate) fn signal(&self, signal: Signal) -> io::Result<()> {
        let sent = match &self.handle {
            Some(handle) => rustix::process::pidfd_send_signal(handle, signal),
            None => rustix::process::kill_process(self.pid, signal),
        };
        match sent {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => {
                let text = format!("cannot signal process {}: {error}", self.pid.as_raw_nonzero());
                Err(io::Error::new(io::Error::from(error).kind(), text))
            }
        }
    }
}

/// The process id in the first line of a file: never one that addresses several processes.
pub(crate) fn number(text: &str) -> Option<Pid> {
    let number = text.lines().next()?.trim().parse::<u32>().ok()?;
    i32::try_from(number).ok().and_then(Pid::from_raw)
}

/// The user that runs the process; `None` if it is gone.
pub(crate) fn owner(pid: Pid) -> Option<u32> {
    Some(std::fs::metadata(place(pid, "")).ok()?.uid())
}

fn place(pid: Pid, what: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{}/{what}", pid.as_raw_nonzero()))
}

fn is(pid: Pid, role: Role, root: &Path, trust: Trust) -> bool {
    let (Some(uid), Ok(arguments)) = (owner(pid), std::fs::read(place(pid, "cmdline"))) else { return false };
    let mut arguments = arguments.split(|byte| *byte == 0);
    let named = PathBuf::from(OsStr::from_bytes(arguments.next().unwrap_or_default()));
    let program = match std::fs::read_link(place(pid, "exe")) {
        // In another user namespace, only the name that the process gives itself is visible.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => named,
        program => program.unwrap_or_default(),
    };
    let name = program.file_name().map(OsStr::as_bytes).unwrap_or_default();
    let is_ours = [&b"compute-fs"[..], b"compute-fs (deleted)"].contains(&name);
    trust.has(uid) && is_ours && is_told(pid, arguments, role, root)
}

/// Whether its arguments match the role and the directory.
fn is_told<'a>(pid: Pid, mut arguments: impl Iterator<Item = &'a [u8]>, role: Role, root: &Path) -> bool {
    let command = match role {
        Role::Supervisor => "run",
        Role::Daemon => "serve",
    };
    if arguments.next() != Some(command.as_bytes()) {
        return false;
    }
    let dir = arguments.skip_while(|argument| argument != b"--dir").nth(1).unwrap_or_default();
    let dir = place(pid, "cwd").join(OsStr::from_bytes(dir));
    matches!((dir.canonicalize(), root.canonicalize()), (Ok(told), Ok(root)) if told == root)
}

/// Whether the process exists and works in a compute's data directory: ids are reused. `None` if it exists but
/// belongs to somebody else.
pub(crate) fn works_in(pid: Pid, data: &Path) -> Option<bool> {
    match std::fs::read_link(place(pid, "cwd")) {
        // The directory's own path may contain links; the directory itself may be on a file system that does not
        // answer.
        Ok(cwd) => match (data.parent().map(std::fs::canonicalize), data.file_name()) {
            (Some(Ok(parent)), Some(name)) => Some(parent.join(name) == cwd),
            _ => Some(false),
        },
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => None,
        Err(_) => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_not_taken_for_ours() {
        let (own, dir) = (rustix::process::getpid(), camino_tempfile::tempdir().unwrap());
        for role in [Role::Supervisor, Role::Daemon] {
            assert!(Process::find(own, role, dir.path().as_std_path(), Trust::me()).unwrap().is_none());
        }
        assert!(Process::find_server(own, dir.path().as_std_path(), Trust::me()).unwrap().is_none());
        let here = std::env::current_dir().unwrap();
        assert!(Process::find_server(own, &here, Trust::me()).unwrap().is_some());
    }

    #[test]
    fn a_number_is_that_of_one_process() {
        assert_eq!(number("17\nsaid").map(|pid| pid.as_raw_nonzero().get()), Some(17));
        for bad in ["", "\n17", "0", "-1", "-17", "x", "4294967295", "99999999999"] {
            assert_eq!(number(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn one_that_has_ended_is_nobody() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid::from_child(&child);
        child.wait().unwrap();
        assert!(Process::find(pid, Role::Daemon, Path::new("/"), Trust::me()).unwrap().is_none());
    }
}
