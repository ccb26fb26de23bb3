//! Errors of filling a compute's directory.

use std::io;
use std::path::Path;

use pageserver_api::boot_image::BootImageError;
use pageserver_client::ClientError;

/// Why a compute's directory could not be filled.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The pageserver did not send the image.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// The image is damaged.
    #[error("{0}")]
    Image(#[from] BootImageError),
    /// A file of the image does not match its checksum, or is missing.
    #[error("boot image: {path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The local disk failed.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// The operating system's error.
        source: io::Error,
    },
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BootError {
    let path = path.display().to_string();
    move |source| BootError::Io { path, source }
}
