//! What can be wrong with a connection or with the bytes on it.

use std::io;

/// Bytes that are not what the protocol has at this place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A message has a type that is not known.
    #[error("unknown message type {0:#04x}")]
    UnknownTag(u8),
    /// A known message that may not come now.
    #[error("unexpected message {tag:?} while {during}")]
    Unexpected {
        /// Its type.
        tag: char,
        /// What was expected instead.
        during: &'static str,
    },
    /// A message says that it is shorter than possible, or longer than the receiver takes.
    #[error("message length {len} is not in {min}..={max}")]
    Length {
        /// The length in the message.
        len: i64,
        /// Smallest length possible.
        min: usize,
        /// Declared limit.
        max: usize,
    },
    /// The fields of a message do not fit its length or have impossible values.
    #[error("malformed {0}")]
    Malformed(&'static str),
}

/// Why no message could be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The connection failed, or ended inside a message.
    #[error("connection failed: {0}")]
    Io(#[from] io::Error),
    /// The peer sent something that is no message.
    #[error("protocol violation: {0}")]
    Protocol(#[from] ProtocolError),
}
