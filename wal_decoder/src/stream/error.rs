//! Errors of decoding a WAL stream.

use postgres_formats::{record::HeaderError, wal_file::WalPosition, wal_page::WalPageError};
use thiserror::Error;
use utils::lsn::Lsn;

/// Why decoding stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WalError {
    /// No valid record follows. In files of a stopped or crashed server this is where its WAL ends; in WAL sent by a
    /// server, it is damage.
    #[error("WAL ends at {lsn}: {reason} at {} (file {at})", at.lsn)]
    EndOfWal {
        /// End of the last valid record.
        lsn: Lsn,
        /// Position of the invalid bytes.
        at: WalPosition,
        /// What is invalid about them.
        reason: EndReason,
    },
    /// The bytes are WAL of another cluster, version, or format.
    #[error("not this cluster's WAL: {error} at {} (file {at})", at.lsn)]
    Foreign {
        /// End of the last valid record.
        lsn: Lsn,
        /// Position of the bytes.
        at: WalPosition,
        /// What differs.
        error: WalPageError,
    },
    /// The decoder was used incorrectly.
    #[error("WAL decoder cannot use {lsn}: {what}")]
    Misuse {
        /// The LSN that was passed.
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
    /// The page dates from before its segment file was recycled.
    #[error("stale page: {0}")]
    StalePage(WalPageError),
    /// The page header is damaged.
    #[error("{0}")]
    Page(WalPageError),
    /// The record's length is impossible.
    #[error("impossible record length {0}")]
    Length(u32),
    /// The record's header is invalid.
    #[error("{0}")]
    Header(HeaderError),
    /// The link to the preceding record is wrong.
    #[error(
        "record with link to {found}, expected {}",
        expected.map_or("an earlier one".into(), |lsn| lsn.to_string())
    )]
    BadPrevious {
        /// The link in the record.
        found: Lsn,
        /// Start of the preceding record; if unknown, any lower LSN would be valid.
        expected: Option<Lsn>,
    },
    /// The record's CRC is wrong.
    #[error("wrong record CRC")]
    BadCrc,
    /// A record should continue on this page, but the page header does not say so.
    #[error("page does not continue the record")]
    MissingRest,
    /// The page header announces a continued record, but a new one should start here.
    #[error("page continues a record, but none is open")]
    UnexpectedRest,
    /// The page continues a record with a different remaining length.
    #[error("page continues a record by {found} bytes, expected {expected}")]
    RestLength {
        /// Remaining length according to the page header.
        found: u32,
        /// Actual remaining length of the record.
        expected: u32,
    },
    /// A record was cut short, but the next one names a different one or none.
    #[error(
        "record cut short at {expected}, but the next one tells of {}",
        found.map_or("none".into(), |lsn| lsn.to_string())
    )]
    Overwrite {
        /// Start of the record that was cut short.
        expected: Lsn,
        /// The record that the next one names.
        found: Option<Lsn>,
    },
}

/// Kinds of incorrect use.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Misuse {
    /// The segment size is not a power of two from 1 MiB to 1 GiB.
    #[error("segments cannot have {0} bytes")]
    SegmentSize(u32),
    /// No record can start there; or a search does not begin at a page boundary that is fed first.
    #[error("decoding cannot start there")]
    Start,
    /// The first byte fed is after the start.
    #[error("first byte fed is at {0}")]
    FeedBehindStart(Lsn),
    /// The bytes fed do not follow the previous ones.
    #[error("the next byte must be that at {expected}")]
    Gap {
        /// LSN of the byte that must be fed next.
        expected: Lsn,
    },
}

impl WalError {
    /// Distinguishes page errors that can occur at the end of a cluster's WAL from those that cannot.
    pub(super) fn of_page(lsn: Lsn, at: WalPosition, error: WalPageError) -> Self {
        let reason = match error {
            WalPageError::Magic { found: 0, .. } => EndReason::ZeroPage,
            WalPageError::Address { .. } | WalPageError::Timeline { .. } => EndReason::StalePage(error),
            WalPageError::Info(_) | WalPageError::Truncated(_) => EndReason::Page(error),
            _ => return Self::Foreign { lsn, at, error },
        };
        Self::EndOfWal { lsn, at, reason }
    }

    /// The end of the last valid record, or the LSN that was passed.
    pub fn lsn(&self) -> Lsn {
        match self {
            Self::EndOfWal { lsn, .. } | Self::Foreign { lsn, .. } | Self::Misuse { lsn, .. } => *lsn,
        }
    }

    /// File and offset of the invalid bytes. Timeline 0 if no page header was seen.
    pub fn place(&self) -> Option<WalPosition> {
        match self {
            Self::EndOfWal { at, .. } | Self::Foreign { at, .. } => Some(*at),
            Self::Misuse { .. } => None,
        }
    }
}
