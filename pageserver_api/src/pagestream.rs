//! Messages between a page server and its clients: requests and responses, protocol versions 2 and 3.
//!
//! Each message is the payload of one CopyData message; all integers are big-endian. A version 3 response repeats the
//! request that it answers; a version 2 response does not. Decoding is total: input that is truncated, too long or of
//! an unknown kind yields a [`DecodeError`].

mod fields;
mod request;
mod response;
#[cfg(test)]
mod tests;

use utils::lsn::Lsn;

use crate::reltag::{BlockNumber, RelTag, SlruKind};

pub use response::Response;

/// Size of a page in bytes.
pub const PAGE_SIZE: usize = 8192;
/// Maximum number of blocks in an SLRU segment.
pub const SLRU_PAGES_PER_SEGMENT: u32 = 32;

/// Version of the protocol, which is part of the name of the command that starts a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolVersion {
    /// `pagestream_v2`.
    V2,
    /// `pagestream_v3`.
    V3,
}

/// Header of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Chosen by the client; 0 in version 2, which has no request id.
    pub reqid: u64,
    /// The LSN to read at; [`Lsn::MAX`] for the latest.
    pub request_lsn: Lsn,
    /// The client guarantees that nothing it asks for changed after this LSN and up to `request_lsn`.
    pub not_modified_since: Lsn,
}

/// The query of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Whether the fork exists.
    Exists(RelTag),
    /// Number of blocks of the fork.
    Nblocks(RelTag),
    /// One page.
    GetPage(RelTag, BlockNumber),
    /// Total size in bytes of all relations of the database in the default tablespace, including all their forks.
    DbSize {
        /// The database's OID.
        dbnode: u32,
    },
    /// All pages of an SLRU segment.
    GetSlruSegment {
        /// Which SLRU.
        kind: SlruKind,
        /// Number of the segment: its file name is this number in hexadecimal.
        segno: u32,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Request id and LSNs.
    pub header: RequestHeader,
    /// The query.
    pub query: Query,
}

/// Answer to a query. Pages are borrowed, so that each is copied only once, into the send buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<P> {
    /// To [`Query::Exists`].
    Exists(bool),
    /// To [`Query::Nblocks`].
    Nblocks(BlockNumber),
    /// To [`Query::GetPage`]: [`PAGE_SIZE`] bytes.
    Page(P),
    /// To [`Query::DbSize`], in bytes.
    DbSize(i64),
    /// To [`Query::GetSlruSegment`]: a whole number of pages.
    SlruSegment(P),
    /// The request failed with this text; the stream continues.
    Error(P),
}

/// The bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first byte is not the tag of any message.
    #[error("unknown pagestream message tag {0}")]
    UnknownTag(u8),
    /// There are too few or too many bytes, or a field has an invalid value.
    #[error("malformed pagestream message with tag {tag}: {problem}")]
    Malformed {
        /// The message's tag.
        tag: u8,
        /// What is wrong.
        problem: &'static str,
    },
    /// The message is empty.
    #[error("empty pagestream message")]
    Empty,
}

impl ProtocolVersion {
    /// The command that starts a stream.
    pub fn command(self) -> &'static str {
        match self {
            ProtocolVersion::V2 => "pagestream_v2",
            ProtocolVersion::V3 => "pagestream_v3",
        }
    }
}

mod tag {
    //! First bytes of messages.
    pub(super) const EXISTS: u8 = 0;
    pub(super) const NBLOCKS: u8 = 1;
    pub(super) const GET_PAGE: u8 = 2;
    pub(super) const DB_SIZE: u8 = 3;
    pub(super) const GET_SLRU_SEGMENT: u8 = 4;

    pub(super) const RESPONSE_EXISTS: u8 = 100;
    pub(super) const RESPONSE_NBLOCKS: u8 = 101;
    pub(super) const RESPONSE_PAGE: u8 = 102;
    pub(super) const ERROR: u8 = 103;
    pub(super) const RESPONSE_DB_SIZE: u8 = 104;
    pub(super) const RESPONSE_SLRU_SEGMENT: u8 = 105;
}
