//! Messages between a page server and those who read pages: requests and responses, protocol versions 2 and 3.
//!
//! Each is the payload of one CopyData message; all integers are big-endian. A response of version 3 repeats the
//! request that it answers, one of version 2 does not. Decoding is total: what is cut short, too long or of an unknown
//! kind is a [`DecodeError`].

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
/// Most blocks that an SLRU segment has.
pub const SLRU_PAGES_PER_SEGMENT: u32 = 32;

/// Version of the protocol, as in the name of the command that starts a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolVersion {
    /// `pagestream_v2`.
    V2,
    /// `pagestream_v3`.
    V3,
}

/// What all requests have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHeader {
    /// Chosen by the client; 0 in version 2, which has none.
    pub reqid: u64,
    /// The version wanted; [`Lsn::MAX`] for the latest.
    pub request_lsn: Lsn,
    /// The client's promise that nothing asked for has changed after this and up to `request_lsn`.
    pub not_modified_since: Lsn,
}

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Query {
    /// Does the fork exist?
    Exists(RelTag),
    /// How many blocks has the fork?
    Nblocks(RelTag),
    /// One page.
    GetPage(RelTag, BlockNumber),
    /// How many bytes have all relations of the database in the default tablespace, with all their forks?
    DbSize {
        /// The database's OID.
        dbnode: u32,
    },
    /// All pages of an SLRU segment.
    GetSlruSegment {
        /// Which SLRU.
        kind: SlruKind,
        /// Number of the segment: its file's name is this in hexadecimal.
        segno: u32,
    },
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which request, and as of when.
    pub header: RequestHeader,
    /// What is asked.
    pub query: Query,
}

/// What is answered; borrowed, so that a page is copied once, into the buffer that is sent.
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
    /// The request failed, with this text; the stream goes on.
    Error(P),
}

/// The bytes are no such message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The first byte is not the tag of any message.
    #[error("unknown pagestream message tag {0}")]
    UnknownTag(u8),
    /// There are too few or too many bytes, or a field has an impossible value.
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
