//! Errors after which nothing on disk may be trusted to be written: the engine stops loudly.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use camino::Utf8Path;

use errors::StorageError;

/// What to do when a device fails to keep its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalAction {
    /// End the process: what is durable is found again at the next start.
    Abort,
    /// Only report the error (tests; tools that write nothing).
    Report,
}

static REPORT_ONLY: AtomicBool = AtomicBool::new(false);

/// Chooses what a fatal error does to this process. The default is [`FatalAction::Abort`].
pub fn set_fatal_action(action: FatalAction) {
    REPORT_ONLY.store(action == FatalAction::Report, Ordering::Relaxed);
}

/// Whether an error of a sync leaves the fate of written data unknown. The kernel reports such an error once and may
/// have dropped the dirty pages, so that a second sync would succeed without having written anything. That holds for
/// lack of room too, where a file system finds room for data only when it writes it back.
fn is_fatal_for_sync(error: &io::Error) -> bool {
    !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// The error of a sync of `path` that has failed. Ends the process first if written data may be gone.
pub(super) fn sync_error(operation: &'static str, path: &Utf8Path, source: io::Error) -> StorageError {
    if !is_fatal_for_sync(&source) {
        return StorageError::Io { operation, path: path.to_owned(), offset: 0, source };
    }
    tracing::error!("{operation} {path} failed: {source}. Written data may be lost: stopping");
    if !REPORT_ONLY.load(Ordering::Relaxed) {
        std::process::abort();
    }
    StorageError::Internal(format!("{operation} {path}: {source}; written data may be lost"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use errors::ErrorKind;

    #[test]
    fn only_an_interrupted_sync_may_be_repeated() {
        set_fatal_action(FatalAction::Report);
        let kind_of = |errno| sync_error("sync", Utf8Path::new("file"), io::Error::from_raw_os_error(errno)).kind();
        assert_eq!(kind_of(libc::EIO), ErrorKind::Internal);
        assert_eq!(kind_of(libc::ENOSPC), ErrorKind::Internal);
        assert_eq!(kind_of(libc::EINTR), ErrorKind::Retry);
    }
}
