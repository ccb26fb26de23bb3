//! Files: I/O engines and modes, aligned buffers, the buffered writer, and durable directory operations.
//!
//! All file access of the engine goes through this crate, so that tests can substitute a simulated disk
//! ([`simulated`]).
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod alignment;
pub mod buffer;
pub mod buffered_writer;
mod engine;
pub use engine::IoFuture;
mod fatal;
mod file;
#[allow(clippy::disallowed_methods, reason = "this is the seam that everything else must use")]
pub mod fs;
mod kept_memory;
mod open_mode;
pub mod simulated;
#[allow(clippy::disallowed_methods, reason = "this is the seam that everything else must use")]
mod whole_file;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};

pub use alignment::direct_io_alignment;
pub use buffer::AlignedBuf;
pub use buffered_writer::{BufferedWriter, Shutdown};
pub use fatal::{FatalAction, set_fatal_action};
pub use file::VirtualFile;
pub use kept_memory::KeptMemory;
pub use open_mode::OpenMode;
pub use whole_file::{read_file, write_file_durably, write_secret_durably};

/// Whether writes are synced to the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Files and directories are synced.
    Sync,
    /// Nothing is synced: for tests only, a crash loses data.
    UnsafeNoSync,
}

const UNSET: u8 = u8::MAX;
static ENGINE: AtomicU8 = AtomicU8::new(UNSET);
static IO_MODE: AtomicU8 = AtomicU8::new(UNSET);
static NO_SYNC: AtomicBool = AtomicBool::new(false);

/// Selects I/O engine and modes for the process.
///
/// `num_slots` is the maximum number of open files; the process's limit is raised to it where permitted.
pub fn init(num_slots: usize, engine: IoEngineKind, mode: IoMode, sync_mode: SyncMode) {
    ENGINE.store(engine as u8, Ordering::Relaxed);
    set_io_mode(mode);
    NO_SYNC.store(sync_mode == SyncMode::UnsafeNoSync, Ordering::Relaxed);
    raise_file_limit(num_slots as u64);
}

fn raise_file_limit(wanted: u64) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let target = limit.maximum.map_or(wanted, |hard| wanted.min(hard));
    if limit.current.is_some_and(|soft| soft < target) {
        let raised = Rlimit { current: Some(target), maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!("could not raise the limit of open files to {target}: {error}");
        }
    }
}

/// Changes the I/O engine: operations that have begun end as they began.
///
/// # Errors
/// If it does not work on this machine.
pub fn set_io_engine(engine: IoEngineKind) -> std::io::Result<()> {
    if engine == IoEngineKind::TokioEpollUring {
        tokio_epoll_uring::is_available()?;
    }
    ENGINE.store(engine as u8, Ordering::Relaxed);
    Ok(())
}

/// Changes the I/O mode. Open files keep theirs.
pub fn set_io_mode(mode: IoMode) {
    IO_MODE.store(mode as u8, Ordering::Relaxed);
}

/// The I/O mode with which files are opened.
pub fn io_mode() -> IoMode {
    IoMode::from_number(IO_MODE.load(Ordering::Relaxed)).unwrap_or_default()
}

/// The I/O engine in use: the one set by [`init`], else the best one available.
pub fn io_engine() -> IoEngineKind {
    match ENGINE.load(Ordering::Relaxed) {
        number if number == IoEngineKind::StdFs as u8 => IoEngineKind::StdFs,
        number if number == IoEngineKind::TokioEpollUring as u8 => IoEngineKind::TokioEpollUring,
        _ => {
            let best = io_engine_for_bench();
            ENGINE.store(best as u8, Ordering::Relaxed);
            best
        }
    }
}

/// The best I/O engine that works on this machine.
pub fn io_engine_for_bench() -> IoEngineKind {
    match tokio_epoll_uring::is_available() {
        Ok(()) => IoEngineKind::TokioEpollUring,
        Err(error) => {
            tracing::warn!("io_uring is not available, file I/O goes through a thread pool: {error}");
            IoEngineKind::StdFs
        }
    }
}

pub(crate) fn sync_enabled() -> bool {
    !NO_SYNC.load(Ordering::Relaxed)
}
