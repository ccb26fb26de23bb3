//! SQLSTATE codes (`src/backend/utils/errcodes.txt`).

use std::fmt;

/// Five characters that identify the kind of error.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SqlState([u8; 5]);

macro_rules! states {
    ($($(#[$doc:meta])* $name:ident = $code:literal;)*) => {
        impl SqlState {
            $($(#[$doc])* pub const $name: SqlState = SqlState(*$code);)*
        }
    };
}

states! {
    /// An error without a more precise code.
    INTERNAL_ERROR = b"XX000";
    /// The connection is unusable: reconnect.
    CONNECTION_FAILURE = b"08006";
    /// The peer violated the protocol.
    PROTOCOL_VIOLATION = b"08P01";
    /// Not supported.
    FEATURE_NOT_SUPPORTED = b"0A000";
    /// The client may not connect, or not in this way.
    INVALID_AUTHORIZATION = b"28000";
    /// Wrong password.
    INVALID_PASSWORD = b"28P01";
    /// Unknown or malformed command.
    SYNTAX_ERROR = b"42601";
    /// The named object (such as a slot) does not exist.
    UNDEFINED_OBJECT = b"42704";
    /// The named object already exists.
    DUPLICATE_OBJECT = b"42710";
    /// A prepared statement of this name exists.
    DUPLICATE_PREPARED_STATEMENT = b"42P05";
    /// A portal of this name exists.
    DUPLICATE_CURSOR = b"42P03";
    /// No prepared statement has this name.
    INVALID_SQL_STATEMENT_NAME = b"26000";
    /// There is no such database.
    INVALID_CATALOG_NAME = b"3D000";
    /// No portal has this name.
    INVALID_CURSOR_NAME = b"34000";
    /// Something is larger than the server permits.
    PROGRAM_LIMIT_EXCEEDED = b"54000";
    /// All connections are taken.
    TOO_MANY_CONNECTIONS = b"53300";
    /// Somebody else is using the object.
    OBJECT_IN_USE = b"55006";
    /// The server is shutting down.
    ADMIN_SHUTDOWN = b"57P01";
    /// The server does not accept connections now: it is starting, stopping or recovering.
    CANNOT_CONNECT_NOW = b"57P03";
    /// A file does not exist (anymore), such as a removed WAL segment.
    UNDEFINED_FILE = b"58P01";
}

impl SqlState {
    /// The code of five bytes; anything else counts as an internal error.
    pub fn from_bytes(code: &[u8]) -> Self {
        match <[u8; 5]>::try_from(code) {
            Ok(code) if code.iter().all(u8::is_ascii_alphanumeric) => Self(code),
            _ => Self::INTERNAL_ERROR,
        }
    }

    /// The five characters.
    pub fn as_str(&self) -> &str {
        // Only ASCII is accepted, see `from_bytes` and the constants.
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

impl fmt::Display for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for SqlState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
