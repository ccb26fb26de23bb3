//! Starting and stopping a file system from another process.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use super::process::{Process, Role};
use super::program::command;
use super::{lock, recovery};
use crate::layout::Layout;
use crate::private::Trust;

const LOOK: Duration = Duration::from_millis(10);

/// Printed when the file system can be used.
pub const READY: &str = "ready";

/// For a process to end that was killed.
const KILLED: Duration = Duration::from_secs(10);

/// Starts the supervisor of the compute at `layout`, which outlives us, with program `compute_fs`; returns when the
/// data directory can be used. `args` say where blocks come from. Log and errors are in [`Layout::log`]. The child is
/// given back for a caller that lives long: somebody has to wait for its end, and nobody else can.
pub fn start(compute_fs: &Path, layout: &Layout, args: &[String]) -> io::Result<Child> {
    let trust = Trust::of(layout.root())?;
    let log = trust.append(&layout.log())?;
    let mut command = command(compute_fs, false);
    command.arg("run").arg("--dir").arg(layout.root()).args(args);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).process_group(0).spawn()?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(child);
    }
    let status = child.wait()?;
    let log = trust.read(&layout.log()).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let reason = log.lines().next_back().unwrap_or_default();
    Err(io::Error::other(format!("the file system did not start ({status}): {reason}")))
}

/// The process id of the supervisor, if one runs.
pub fn supervisor(layout: &Layout) -> io::Result<Option<i32>> {
    Ok(supervising(layout)?.map(|process| process.pid().as_raw_nonzero().get()))
}

fn supervising(layout: &Layout) -> io::Result<Option<Process>> {
    Ok(lock::holder(layout, Role::Supervisor)?.and_then(|holder| holder.process))
}

/// Whether the data directory is mounted as this process sees it. Another mount namespace has mounts of its own.
pub fn is_visible(layout: &Layout) -> io::Result<bool> {
    super::mount::is_mounted(&layout.data())
}

/// Unmounts: has the supervisor end, and waits for that. A server that still runs on it is killed.
pub fn stop(layout: &Layout, patience: Duration) -> io::Result<()> {
    let Some(process) = supervising(layout)? else { return Ok(()) };
    process.signal(Signal::TERM)?;
    let since = env::clock::now();
    while lock::holder(layout, Role::Supervisor)?.is_some() {
        if env::clock::now() - since > patience {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the supervisor does not end"));
        }
        env::clock::pause(LOOK);
    }
    Ok(())
}

/// Takes down what a supervisor has left that was killed. A server that still runs on it is killed.
pub fn clear(layout: &Layout) -> io::Result<()> {
    recovery::clear(layout)
}

/// Ends the server and all that serves it, whatever state they are in: suspended, waiting for each other or for room on
/// the disk. What was not synced is lost.
pub fn force(layout: &Layout) -> io::Result<()> {
    // First, for it would start another daemon.
    lock::kill_holder(layout, Role::Supervisor, KILLED)?;
    recovery::force(layout)
}

/// Has somebody wait for the end of a process that outlives us, if we live that long.
pub(crate) fn reap(mut process: Child) {
    // Without a thread nobody waits for it before we end.
    let _ = env::spawn::thread("wait", move || drop(process.wait()));
}
