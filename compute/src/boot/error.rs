//! Why a compute's directory was not filled.

use std::io;
use std::path::Path;

use pageserver_api::boot_image::BootImageError;
use pageserver_client::ClientError;

/// Why a compute's directory was not made.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The page server did not give the image.
    #[error("{0}")]
    Client(#[from] ClientError),
    /// It is damaged.
    #[error("{0}")]
    Image(#[from] BootImageError),
    /// A file of it is not as its sum says, or is missing.
    #[error("boot image: {path}: {problem}")]
    File {
        /// Which file.
        path: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The local disk.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: String,
        /// What the system says.
        source: io::Error,
    },
}

pub(super) fn io_error(path: &Path) -> impl FnOnce(io::Error) -> BootError {
    let path = path.display().to_string();
    move |source| BootError::Io { path, source }
}
