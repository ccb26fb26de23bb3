//! Errors in boot images.

/// A file of a boot image is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootImageError {
    /// It has the wrong magic number or an unknown version.
    #[error("boot image: this is no {0} of a known version")]
    Foreign(&'static str),
    /// It is truncated, too long or corrupted.
    #[error("boot image: the {what} is damaged: {problem}")]
    Damaged {
        /// Which file.
        what: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}
