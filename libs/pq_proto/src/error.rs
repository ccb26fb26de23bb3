//! Errors of a connection or of the bytes on it.

use std::io;

/// Bytes that the protocol does not allow at this point.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A message has an unknown type.
    #[error("unknown message type {0:#04x}")]
    UnknownTag(u8),
    /// A known message that is not allowed now.
    #[error("unexpected message {tag:?} while {during}")]
    Unexpected {
        /// Its type.
        tag: char,
        /// What the receiver was doing.
        during: &'static str,
    },
    /// A message's length field is smaller than possible, or larger than the receiver accepts.
    #[error("message length {len} is not in {min}..={max}")]
    Length {
        /// The length in the message.
        len: i64,
        /// Smallest possible length.
        min: usize,
        /// The receiver's limit.
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
    /// The peer sent an invalid message.
    #[error("protocol violation: {0}")]
    Protocol(#[from] ProtocolError),
}
