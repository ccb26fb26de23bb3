//! Who works on a compute: a lock file each for supervisor and daemon, with the process id of the holder in its first
//! line. The lock says whether that one lives; the number alone could be somebody else's by now.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::process::{Pid, Signal};

use crate::layout::Layout;

const LOOK: Duration = Duration::from_millis(10);

/// The lock of the supervisor.
pub(crate) struct Lock(File);

impl Lock {
    /// Takes it for this process.
    pub(crate) fn take(layout: &Layout) -> io::Result<Self> {
        let file = open(&layout.lock())?;
        // Who only looks has it for a moment.
        for _ in 0..20 {
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                sign(&file, "")?;
                return Ok(Self(file));
            }
            std::thread::sleep(LOOK);
        }
        let text = format!("{}: another supervisor runs on this compute", layout.root().display());
        Err(io::Error::new(io::ErrorKind::AddrInUse, text))
    }

    /// Leaves a line for whoever asks how it is; none if all is well.
    pub(crate) fn note(&self, note: &str) -> io::Result<()> {
        sign(&self.0, note)
    }
}

/// Takes the lock of the daemon: a former one may still be writing what the kernel had kept back.
pub fn lock_daemon(layout: &Layout) -> io::Result<File> {
    let file = open(&layout.daemon_lock())?;
    for _ in 0..100 {
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            sign(&file, "")?;
            return Ok(file);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "another daemon still serves this compute"))
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

/// Writes our process id. It is never away while it is written again.
fn sign(lock: &File, note: &str) -> io::Result<()> {
    let text = format!("{}\n{note}", std::process::id());
    lock.write_all_at(text.as_bytes(), 0)?;
    lock.set_len(text.len() as u64)?;
    (&*lock).flush()
}

/// Whoever holds the lock `path`, and what it noted there.
pub(crate) fn holder(path: &Path) -> io::Result<Option<(Pid, String)>> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    // Shared: two that look do not take each other for the holder.
    if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
        return Ok(None);
    }
    let text = io::read_to_string(file)?;
    let (pid, note) = text.split_once('\n').unwrap_or((&text, ""));
    Ok(pid.trim().parse().ok().and_then(Pid::from_raw).map(|pid| (pid, note.to_owned())))
}

/// Sends SIGKILL to whoever holds the lock `path`, and waits until it is free. Gives who it was.
pub(crate) fn kill_holder(path: &Path, limit: Duration) -> io::Result<Option<Pid>> {
    let since = env::clock::now();
    let mut killed = None;
    while let Some((pid, _)) = holder(path)? {
        if killed != Some(pid) {
            match rustix::process::kill_process(pid, Signal::KILL) {
                Ok(()) | Err(rustix::io::Errno::SRCH) => killed = Some(pid),
                Err(error) => {
                    let text = format!("cannot end process {}: {error}", pid.as_raw_nonzero());
                    return Err(io::Error::new(io::Error::from(error).kind(), text));
                }
            }
        }
        if env::clock::now() - since > limit {
            let text = format!("process {} was killed and does not end", pid.as_raw_nonzero());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        std::thread::sleep(LOOK);
    }
    Ok(killed)
}
