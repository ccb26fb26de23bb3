//! Starts and stops a file system from another process.

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

/// Printed when the file system is usable.
pub const READY: &str = "ready";

/// How long a killed process may take to end.
const KILLED: Duration = Duration::from_secs(10);

/// Starts the supervisor of the compute at `layout`, which outlives us, from the program `compute_fs`; returns when
/// the data directory is usable. `args` say where blocks come from. Log and errors are in [`Layout::log`]. A
/// long-lived caller must reap the returned child, because nobody else can.
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

/// The process id of the supervisor, if it runs.
pub fn supervisor(layout: &Layout) -> io::Result<Option<i32>> {
    Ok(supervising(layout)?.map(|process| process.pid().as_raw_nonzero().get()))
}

fn supervising(layout: &Layout) -> io::Result<Option<Process>> {
    Ok(lock::holder(layout, Role::Supervisor)?.and_then(|holder| holder.process))
}

/// Whether the data directory is mounted in this process's mount namespace.
pub fn is_visible(layout: &Layout) -> io::Result<bool> {
    super::mount::is_mounted(&layout.data())
}

/// Unmounts: tells the supervisor to stop and waits for its end. A server that still runs on the mount is killed.
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

/// Cleans up after a supervisor that was killed. A server that still runs on the mount is killed.
pub fn clear(layout: &Layout) -> io::Result<()> {
    recovery::clear(layout)
}

/// Kills the server and everything that serves it, whatever state they are in: suspended, waiting for each other or
/// for space on the disk. What was not synced is lost.
pub fn force(layout: &Layout) -> io::Result<()> {
    // The supervisor first, because it would start another daemon.
    lock::kill_holder(layout, Role::Supervisor, KILLED)?;
    recovery::force(layout)
}

/// Reaps a process that may outlive us, if we live long enough.
pub(crate) fn reap(mut process: Child) {
    // If the thread cannot start, nobody reaps the process before we end.
    let _ = env::spawn::thread("wait", move || drop(process.wait()));
}
