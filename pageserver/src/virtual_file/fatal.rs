//! Errors after which nothing on disk may be trusted to be written: the engine stops loudly.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use camino::Utf8Path;

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

/// Whether an error of a sync leaves the fate of written data unknown. After such an error the kernel may have
/// dropped the dirty pages, so that a second sync would succeed without having written anything.
fn is_fatal_for_sync(error: &io::Error) -> bool {
    !matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EINTR | libc::EAGAIN))
}

/// Ends the process if `error`, met by a sync of `path`, means that written data may be gone.
pub(super) fn check_sync_error(path: &Utf8Path, error: &io::Error) {
    if is_fatal_for_sync(error) {
        tracing::error!("sync of {path} failed: {error}. Written data may be lost: stopping");
        if !REPORT_ONLY.load(Ordering::Relaxed) {
            std::process::abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lack_of_room_is_harmless_to_a_sync() {
        assert!(is_fatal_for_sync(&io::Error::from_raw_os_error(libc::EIO)));
        assert!(!is_fatal_for_sync(&io::Error::from_raw_os_error(libc::ENOSPC)));
    }
}
