//! Creates rings, and explains failures to do so.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use io_uring::{IoUring, Probe, opcode};

/// Entries of a ring unless [`set_default_ring_entries`] said otherwise.
pub const DEFAULT_RING_ENTRIES: u32 = 128;

/// The kernel's limit on a ring's entries (`IORING_MAX_ENTRIES`).
pub const MAX_RING_ENTRIES: u32 = 32768;

/// Required operations; the kernel has all of them since 5.6.
const NEEDED: [(u8, &str); 9] = [
    (opcode::Readv::CODE, "READV"),
    (opcode::Writev::CODE, "WRITEV"),
    (opcode::Fsync::CODE, "FSYNC"),
    (opcode::SyncFileRange::CODE, "SYNC_FILE_RANGE"),
    (opcode::Fallocate::CODE, "FALLOCATE"),
    (opcode::OpenAt::CODE, "OPENAT"),
    (opcode::Statx::CODE, "STATX"),
    (opcode::Read::CODE, "READ"),
    (opcode::Write::CODE, "WRITE"),
];

static RING_ENTRIES: AtomicU32 = AtomicU32::new(DEFAULT_RING_ENTRIES);
static SUPPORT: OnceLock<Support> = OnceLock::new();

/// Kernel features beyond the required ones.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Support {
    /// `IORING_OP_FTRUNCATE`, since 6.9.
    pub(crate) ftruncate: bool,
}

/// Why there is no ring. Converts to an [`io::Error`] of the same kind, with this as its source.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// A ring size outside `1..=MAX_RING_ENTRIES`.
    #[error("a ring cannot have {0} entries: at least 1 and at most {MAX_RING_ENTRIES}")]
    Entries(u32),
    /// `io_uring_setup` failed.
    #[error("io_uring_setup failed: {source}; {}", advice(.source))]
    Setup {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel could not be asked for its supported operations.
    #[error("io_uring cannot be probed for its operations: {source}; Linux 5.6 or newer is needed")]
    Probe {
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel lacks required operations.
    #[error("io_uring lacks operations: {}; Linux 5.6 or newer is needed", .0.join(", "))]
    MissingOperations(Vec<&'static str>),
    /// The ring could not be added to the runtime's epoll.
    #[error(
        "the ring cannot be added to the runtime's epoll: {source}; is the runtime shutting down, or \
             fs.epoll.max_user_watches exhausted?"
    )]
    Epoll {
        /// The error from tokio or the kernel.
        source: io::Error,
    },
    /// There is no tokio runtime.
    #[error("not called in the context of a tokio runtime")]
    NoRuntime,
    /// The thread is being torn down.
    #[error("the thread is exiting: it can have no ring any more")]
    ThreadExiting,
}

impl From<SetupError> for io::Error {
    fn from(error: SetupError) -> Self {
        let kind = match &error {
            SetupError::Entries(_) => io::ErrorKind::InvalidInput,
            SetupError::Setup { source } | SetupError::Probe { source } | SetupError::Epoll { source } => source.kind(),
            SetupError::MissingOperations(_) => io::ErrorKind::Unsupported,
            SetupError::NoRuntime | SetupError::ThreadExiting => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// What an operator can do about a failed `io_uring_setup`.
fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => {
            "the sysctl kernel.io_uring_disabled must be 0 (or 1 with this user in kernel.io_uring_group), and no \
             seccomp profile or security module may forbid io_uring (container runtimes often do)"
        }
        Some(libc::ENOSYS) => {
            "the kernel is older than 5.1, was built without CONFIG_IO_URING, or a seccomp profile hides io_uring"
        }
        Some(libc::ENOMEM) => {
            "memory is short, or the limit of locked memory is: raise it (ulimit -l, LimitMEMLOCK= in a systemd unit), \
             as kernels before 5.12 charge rings to it"
        }
        Some(libc::EMFILE) => "every ring is an open file: raise the limit of open files (ulimit -n, LimitNOFILE=)",
        Some(libc::ENFILE) => "the system's limit of open files is reached: raise the sysctl fs.file-max",
        _ => "see io_uring_setup(2)",
    }
}

/// Sets the size of the rings that [`thread_local_system`](crate::thread_local_system) creates from now on; the
/// kernel rounds it up to a power of two. It bounds the operations in flight of each (thread, runtime).
///
/// # Errors
///
/// [`SetupError::Entries`] when it is 0 or more than [`MAX_RING_ENTRIES`].
pub fn set_default_ring_entries(entries: u32) -> Result<(), SetupError> {
    check_entries(entries)?;
    RING_ENTRIES.store(entries, Ordering::Relaxed);
    Ok(())
}

pub(crate) fn default_ring_entries() -> u32 {
    RING_ENTRIES.load(Ordering::Relaxed)
}

fn check_entries(entries: u32) -> Result<(), SetupError> {
    if (1..=MAX_RING_ENTRIES).contains(&entries) { Ok(()) } else { Err(SetupError::Entries(entries)) }
}

/// Tests whether this process can use io_uring: creates a ring and asks the kernel for its operations.
///
/// # Errors
///
/// A [`SetupError`] that says what is missing and what to do about it.
pub fn is_available() -> io::Result<()> {
    let ring = build(default_ring_entries())?;
    probe(&ring)?;
    Ok(())
}

/// Creates a ring, and checks for the required operations if this has not been done yet.
pub(crate) fn make_ring(entries: u32) -> Result<(IoUring, Support), SetupError> {
    let ring = build(entries)?;
    let support = match SUPPORT.get() {
        Some(support) => *support,
        None => *SUPPORT.get_or_init({
            let support = probe(&ring)?;
            move || support
        }),
    };
    Ok((ring, support))
}

fn build(entries: u32) -> Result<IoUring, SetupError> {
    check_entries(entries)?;
    IoUring::new(entries).map_err(|source| SetupError::Setup { source })
}

fn probe(ring: &IoUring) -> Result<Support, SetupError> {
    let mut probe = Probe::new();
    ring.submitter().register_probe(&mut probe).map_err(|source| SetupError::Probe { source })?;
    let missing: Vec<_> = NEEDED.iter().filter(|(code, _)| !probe.is_supported(*code)).map(|(_, name)| *name).collect();
    if !missing.is_empty() {
        return Err(SetupError::MissingOperations(missing));
    }
    Ok(Support { ftruncate: probe.is_supported(opcode::Ftruncate::CODE) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let cases = [
            (libc::EPERM, "kernel.io_uring_disabled"),
            (libc::EPERM, "seccomp"),
            (libc::ENOSYS, "CONFIG_IO_URING"),
            (libc::ENOMEM, "LimitMEMLOCK"),
            (libc::EMFILE, "LimitNOFILE"),
            (libc::ENFILE, "fs.file-max"),
        ];
        for (errno, expected) in cases {
            let source = io::Error::from_raw_os_error(errno);
            let kind = source.kind();
            let error = io::Error::from(SetupError::Setup { source });
            assert!(error.to_string().contains(expected), "{error}");
            assert_eq!(error.kind(), kind);
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        for entries in [0, MAX_RING_ENTRIES + 1] {
            let error = make_ring(entries).err().expect("refused");
            assert!(matches!(error, SetupError::Entries(refused) if refused == entries));
            assert!(matches!(set_default_ring_entries(entries), Err(SetupError::Entries(_))));
        }
    }
}
