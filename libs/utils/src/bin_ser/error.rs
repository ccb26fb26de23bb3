//! Errors of encoding and decoding.

/// Why a value could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum SerializeError {
    /// The writer failed.
    #[error("write failed: {0}")]
    Io(#[from] std::io::Error),
    /// The value has no fixed-width form (for example a sequence of unknown length).
    #[error("value cannot be encoded: {0}")]
    Unsupported(String),
}

/// Why bytes could not be decoded.
#[derive(Debug, thiserror::Error)]
pub enum DeserializeError {
    /// The bytes end before the value does, or the reader failed.
    #[error("value ends early: {0}")]
    Io(#[from] std::io::Error),
    /// The bytes do not form a value of this type.
    #[error("bad value: {0}")]
    BadInput(String),
    /// Bytes remain after the value.
    #[error("{0} bytes left after the value")]
    Trailing(usize),
}
