//! Who works on a compute: one lock file each for supervisor and daemon, with the holder's process id in its first
//! line. The lock says whether the holder lives; the id alone could have been reused or forged, so no process is
//! signaled unless it is verified to be the one that the file names.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};

use super::process::{Process, Role, number};
use crate::layout::Layout;
use crate::private::Trust;

const LOOK: Duration = Duration::from_millis(10);

/// How long a process that has taken a lock may take to write its id there.
const SIGNED: Duration = Duration::from_secs(2);

/// The lock of the supervisor.
pub(crate) struct Lock(File);

impl Lock {
    /// Takes the lock for this process.
    pub(crate) fn take(layout: &Layout) -> io::Result<Self> {
        let file = open(layout, Role::Supervisor)?;
        // A process that only looks holds it for a moment.
        for _ in 0..20 {
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                sign(&file, "")?;
                return Ok(Self(file));
            }
            env::clock::pause(LOOK);
        }
        let text = format!("{}: another supervisor runs on this compute", layout.root().display());
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    }

    /// Leaves a line for status queries; empty if all is well.
    pub(crate) fn note(&self, note: &str) -> io::Result<()> {
        sign(&self.0, note)
    }
}

/// Takes the daemon's lock: a former daemon may still be writing back data from the kernel.
pub fn lock_daemon(layout: &Layout) -> io::Result<File> {
    let file = open(layout, Role::Daemon)?;
    for _ in 0..100 {
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            sign(&file, "")?;
            return Ok(file);
        }
        env::clock::pause(Duration::from_millis(100));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "another daemon still serves this compute"))
}

fn path(layout: &Layout, role: Role) -> PathBuf {
    match role {
        Role::Supervisor => layout.lock(),
        Role::Daemon => layout.daemon_lock(),
    }
}

fn open(layout: &Layout, role: Role) -> io::Result<File> {
    let options = &mut File::options();
    Trust::of(layout.root())?.open(&path(layout, role), options.read(true).write(true).create(true))
}

/// Writes our process id. The id is present at every moment, also while it is rewritten.
fn sign(lock: &File, note: &str) -> io::Result<()> {
    let text = format!("{}\n{note}", std::process::id());
    lock.write_all_at(text.as_bytes(), 0)?;
    lock.set_len(text.len() as u64)?;
    (&*lock).flush()
}

/// The process that holds a lock.
pub(crate) struct Holder {
    /// `None`: not the expected process. Either it has only just taken the lock, or something is wrong.
    pub(crate) process: Option<Process>,
    /// The process id in the file.
    pub(crate) pid: Pid,
    /// The note in the file.
    pub(crate) note: String,
}

/// The holder of a lock of the compute, if any.
pub(crate) fn holder(layout: &Layout, role: Role) -> io::Result<Option<Holder>> {
    let trust = match Trust::of(layout.root()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        trust => trust?,
    };
    let file = match trust.open(&path(layout, role), File::options().read(true)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    // Shared, so that two observers do not take each other for the holder.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let text = io::read_to_string(file)?;
    let Some(pid) = number(&text) else { return Ok(None) };
    let note = text.split_once('\n').map_or("", |(_, note)| note);
    let process = Process::find(pid, role, layout.root(), trust)?;
    Ok(Some(Holder { process, pid, note: note.to_owned() }))
}

/// Kills the holder of a lock of the compute with SIGKILL, and waits until the lock is free. Returns who it was.
pub(crate) fn kill_holder(layout: &Layout, role: Role, limit: Duration) -> io::Result<Option<Pid>> {
    let since = env::clock::now();
    let mut killed = None;
    while let Some(holder) = holder(layout, role)? {
        let pid = holder.pid;
        if let Some(process) = holder.process.filter(|_| killed != Some(pid)) {
            process.signal(Signal::KILL)?;
            killed = Some(pid);
        }
        // It may be about to write its id.
        if env::clock::now() - since > if killed == Some(pid) { limit } else { limit.min(SIGNED) } {
            let (number, path) = (pid.as_raw_nonzero(), path(layout, role));
            let text = match killed == Some(pid) {
                true => format!("process {number} was killed and does not end"),
                false => format!(
                    "{}: somebody holds this lock, and process {number}, which it names, is not compute-fs of this \
                     compute: it is left alone",
                    path.display()
                ),
            };
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        env::clock::pause(LOOK);
    }
    Ok(killed)
}
