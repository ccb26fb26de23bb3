//! What can be wrong with a boot image.

/// The bytes are not what they should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootImageError {
    /// They do not begin as such a file does, or are of a version that is not known.
    #[error("boot image: this is no {0} of a known version")]
    Foreign(&'static str),
    /// They are cut short, too long, or changed.
    #[error("boot image: the {what} is damaged: {problem}")]
    Damaged {
        /// Which file.
        what: &'static str,
        /// What is wrong.
        problem: &'static str,
    },
}
