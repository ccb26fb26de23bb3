//! What a file is opened for.

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, to be read.
    Read,
    /// A file that must not exist yet, to be written and read back.
    CreateNew,
    /// An existing file, to be read and written.
    Update,
}
