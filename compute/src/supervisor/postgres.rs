//! Processes of a server whose data directory is a mount.
//!
//! Postgres processes work in their data directory, so a process's working directory says whether it belongs to the
//! server: this also finds those that outlived their postmaster, and does not access the mount, which may be dead.

use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use super::process::{number, owner};
use crate::private::Trust;

const LOOK: Duration = Duration::from_millis(5);

/// Sends SIGKILL to all processes of the server on `data`, the postmaster first; returns their ids.
pub(crate) fn kill(data: &Path) -> io::Result<Vec<i32>> {
    let mut found = processes(data)?;
    // Children are created after their parent, and mostly have the larger id.
    let postmaster = postmaster(data);
    found.sort_by_key(|pid| (Some(*pid) != postmaster, *pid));
    for pid in &found {
        let Some(process) = Pid::from_raw(*pid) else { continue };
        match rustix::process::kill_process(process, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(found)
}

/// Returns when no process of the server on `data` is left. Kills processes forked meanwhile.
pub(crate) fn await_end(data: &Path, limit: Duration) -> io::Result<()> {
    let since = env::clock::now();
    loop {
        let left = kill(data)?;
        if left.is_empty() {
            return Ok(());
        }
        if env::clock::now() - since > limit {
            let text = format!("{}: processes {left:?} of Postgres were killed and do not end", data.display());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        env::clock::pause(LOOK);
    }
}

/// The id in `postmaster.pid`, read from `upper` instead of the mount.
fn postmaster(data: &Path) -> Option<i32> {
    let text = std::fs::read_to_string(data.parent()?.join("upper/postmaster.pid")).ok()?;
    Some(number(&text)?.as_raw_nonzero().get())
}

fn processes(data: &Path) -> io::Result<Vec<i32>> {
    let (postmaster, trust) = (postmaster(data), data.parent().map_or_else(|| Ok(Trust::me()), Trust::of)?);
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Both are unreadable if a process has just ended.
        let link = |name: &str| std::fs::read_link(format!("/proc/{pid}/{name}"));
        let (Ok(directory), Ok(program)) = (link("cwd"), link("exe")) else { continue };
        let program = program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_postgres = program == "postgres" || program == "postgres (deleted)";
        let is_known = || Pid::from_raw(pid).and_then(owner).is_some_and(|uid| trust.has(uid));
        // In a detached mount, the directory is shown as the root.
        let detached = postmaster == Some(pid) && directory == Path::new("/");
        if is_postgres && (directory.starts_with(data) || detached) && is_known() {
            found.push(pid);
        }
    }
    Ok(found)
}
