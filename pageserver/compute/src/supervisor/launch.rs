//! Starting and stopping a file system from another process.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal};

use super::{READY, lock, recovery};
use crate::layout::Layout;

const LOOK: Duration = Duration::from_millis(10);

/// For a process to end that was killed.
const KILLED: Duration = Duration::from_secs(10);

/// Starts the supervisor of the compute at `layout`, which outlives us, with program `compute_fs`; returns when the
/// data directory can be used. `args` say where blocks come from. Log and errors are in [`Layout::log`]. The child is
/// given back for a caller that lives long: somebody has to wait for its end, and nobody else can.
pub fn start(compute_fs: &Path, layout: &Layout, args: &[String]) -> io::Result<Child> {
    let log = File::options().create(true).append(true).open(layout.log())?;
    let mut command = Command::new(compute_fs);
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
    let log = std::fs::read_to_string(layout.log()).unwrap_or_default();
    let reason = log.lines().next_back().unwrap_or_default();
    Err(io::Error::other(format!("the file system did not start ({status}): {reason}")))
}

/// The process id of the supervisor, if one runs.
pub fn supervisor(layout: &Layout) -> io::Result<Option<i32>> {
    Ok(lock::holder(&layout.lock())?.map(|(pid, _)| pid.as_raw_nonzero().get()))
}

/// Whether the data directory is mounted as this process sees it. Another mount namespace has mounts of its own.
pub fn is_visible(layout: &Layout) -> io::Result<bool> {
    super::mount::is_mounted(&layout.data())
}

/// Unmounts: has the supervisor end, and waits for that. A server that still runs on it is killed.
pub fn stop(layout: &Layout, patience: Duration) -> io::Result<()> {
    let Some(pid) = supervisor(layout)?.and_then(Pid::from_raw) else { return Ok(()) };
    rustix::process::kill_process(pid, Signal::TERM)?;
    let since = env::clock::now();
    while supervisor(layout)?.is_some() {
        if env::clock::now() - since > patience {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the supervisor does not end"));
        }
        std::thread::sleep(LOOK);
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
    lock::kill_holder(&layout.lock(), KILLED)?;
    recovery::force(layout)
}
