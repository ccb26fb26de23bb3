//! The purposes for which files are opened.

/// The purpose for which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Read an existing file.
    Read,
    /// Create a file, which must not exist yet; write it and read it back.
    CreateNew,
    /// Read and write an existing file.
    Update,
}
