//! Errors after which written data may not be on disk: the process stops instead of continuing.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use camino::Utf8Path;

use errors::StorageError;

/// What to do when a sync fails in a way that may have lost data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FatalAction {
    /// Abort the process: the next start recovers what is durable.
    Abort,
    /// Only report the error (for tests, and tools that write nothing).
    Report,
}

static REPORT_ONLY: AtomicBool = AtomicBool::new(false);

/// Sets how this process reacts to a fatal error. The default is [`FatalAction::Abort`].
pub fn set_fatal_action(action: FatalAction) {
    REPORT_ONLY.store(action == FatalAction::Report, Ordering::Relaxed);
}

/// Whether a sync error leaves the fate of written data unknown. The kernel reports such an error once and may have
/// dropped the dirty pages, so that a second sync would succeed without having written anything. This includes lack
/// of space, because some file systems allocate space for data only at writeback.
fn is_fatal_for_sync(error: &io::Error) -> bool {
    !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
}

/// The error for a failed sync of `path`. Aborts the process first if written data may be lost.
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
