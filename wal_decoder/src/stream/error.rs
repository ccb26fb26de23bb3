//! Why decoding of a WAL stream stops.

use postgres_formats::{record::HeaderError, wal_file::WalPosition, wal_page::WalPageError};
use thiserror::Error;
use utils::lsn::Lsn;

/// Why decoding stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalError {
    /// No valid record follows. In files of a stopped or crashed server this is where its WAL ends; in WAL that a
    /// server sent, it is damage.
    #[error("WAL ends at {lsn}: {reason} at {} (file {at})", at.lsn)]
    EndOfWal {
        /// End of the last valid record.
        lsn: Lsn,
        /// Where the bytes are that are not valid.
        at: WalPosition,
        /// What is not valid about them.
        reason: EndReason,
    },
    /// The bytes are WAL of another cluster, version, or format.
    #[error("not this cluster's WAL: {error} at {} (file {at})", at.lsn)]
    Foreign {
        /// End of the last valid record.
        lsn: Lsn,
        /// Where.
        at: WalPosition,
        /// What differs.
        error: WalPageError,
    },
    /// The decoder was used wrongly.
    #[error("WAL decoder cannot use {lsn}: {what}")]
    Misuse {
        /// The LSN that was given.
        lsn: Lsn,
        /// What is wrong with it.
        what: Misuse,
    },
}

/// Why no valid record follows.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndReason {
    /// The record's length is zero: nothing was written here.
    #[error("zero record length")]
    ZeroLength,
    /// The page was never written.
    #[error("page of zeros")]
    ZeroPage,
    /// The page is from before its segment file was recycled.
    #[error("stale page: {0}")]
    StalePage(WalPageError),
    /// The page header is damaged.
    #[error("{0}")]
    Page(WalPageError),
    /// The record's length is impossible.
    #[error("impossible record length {0}")]
    Length(u32),
    /// The record's header is not valid.
    #[error("{0}")]
    Header(HeaderError),
    /// The link to the record before is wrong.
    #[error(
        "record with link to {found}, expected {}",
        expected.map_or("an earlier one".into(), |lsn| lsn.to_string())
    )]
    BadPrevious {
        /// In the record.
        found: Lsn,
        /// Start of the record before; if unknown, any lower LSN would be right.
        expected: Option<Lsn>,
    },
    /// The record's CRC is wrong.
    #[error("wrong record CRC")]
    BadCrc,
    /// A record should continue in this page, but the page does not say so.
    #[error("page does not continue the record")]
    MissingRest,
    /// The page continues a record, but a new one should start here.
    #[error("page continues a record, but none is open")]
    UnexpectedRest,
    /// The page continues a record of another length.
    #[error("page continues a record by {found} bytes, expected {expected}")]
    RestLength {
        /// In the page.
        found: u32,
        /// Left of the record.
        expected: u32,
    },
    /// A record was cut short, but the next one tells of another one or of none.
    #[error(
        "record cut short at {expected}, but the next one tells of {}",
        found.map_or("none".into(), |lsn| lsn.to_string())
    )]
    Overwrite {
        /// Start of the record that was cut short.
        expected: Lsn,
        /// What the next record tells.
        found: Option<Lsn>,
    },
}

/// How the decoder was used wrongly.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// Not a power of two from 1 MiB to 1 GiB.
    #[error("segments cannot have {0} bytes")]
    SegmentSize(u32),
    /// No record can start there; or a search does not begin at a page boundary that is fed first.
    #[error("decoding cannot start there")]
    Start,
    /// The first byte fed is behind the start.
    #[error("first byte fed is at {0}")]
    FeedBehindStart(Lsn),
    /// The bytes fed are not those that follow.
    #[error("the next byte must be that at {expected}")]
    Gap {
        /// What must be fed next.
        expected: Lsn,
    },
}

impl WalError {
    /// Sorts a page error into what can be at the end of a cluster's WAL, and what cannot.
    pub(super) fn of_page(lsn: Lsn, at: WalPosition, error: WalPageError) -> Self {
        let reason = match error {
            WalPageError::Magic { found: 0, .. } => EndReason::ZeroPage,
            WalPageError::Address { .. } | WalPageError::Timeline { .. } => EndReason::StalePage(error),
            WalPageError::Info(_) | WalPageError::Truncated(_) => EndReason::Page(error),
            _ => return Self::Foreign { lsn, at, error },
        };
        Self::EndOfWal { lsn, at, reason }
    }

    /// The end of the last valid record, or the LSN that was given.
    pub fn lsn(&self) -> Lsn {
        match self {
            Self::EndOfWal { lsn, .. } | Self::Foreign { lsn, .. } | Self::Misuse { lsn, .. } => *lsn,
        }
    }

    /// File and offset of the bytes that are not valid. Timeline 0 if no page header was seen.
    pub fn place(&self) -> Option<WalPosition> {
        match self {
            Self::EndOfWal { at, .. } | Self::Foreign { at, .. } => Some(*at),
            Self::Misuse { .. } => None,
        }
    }
}
