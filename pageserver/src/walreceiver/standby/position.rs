//! Where a standby goes on: behind the last record that it has, where its journal continues what the bucket has.

use journal::Lane;
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;
use wal_decoder::stream::{WalError, WalStart, WalStreamConfig, WalStreamDecoder};

use engine::tenant::timeline::{Origin, RecordLsn};
use errors::StorageError;

/// The end of what a standby has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Position {
    /// The last whole record.
    pub(super) end: RecordLsn,
    /// The server's timeline that the record was on, if it was read here.
    pub(super) timeline: Option<u32>,
    /// Whether the journal has the page in which the record ends from its beginning on.
    pub(super) has_page: bool,
}

impl Position {
    /// The journal has nothing that continues what the bucket has.
    pub(super) fn of_bucket(bucket: RecordLsn) -> Self {
        Self { end: bucket, timeline: None, has_page: false }
    }

    /// Reads what the journal has behind what the bucket has, up to where it ends, or ends to be WAL.
    pub(super) async fn find(lane: &Lane, bucket: RecordLsn, origin: &Origin) -> Result<Self, StorageError> {
        let mut replay = lane.replay(bucket.last.page_start());
        if replay.end() < Some(bucket.last) {
            return Ok(Self::of_bucket(bucket));
        }
        let mut position = Self { has_page: true, ..Self::of_bucket(bucket) };
        let Ok(mut decoder) = position.decoder(origin) else { return Ok(position) };
        loop {
            let (start, bytes) = match replay.next().await {
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                // It comes again from the server, which keeps it.
                Err(error @ StorageError::Corrupt { .. }) => {
                    tracing::error!("what this standby has ends at {}: {error}", decoder.decoded_lsn());
                    break;
                }
                Err(error) => return Err(error),
            };
            if decoder.feed_at(start, bytes).is_err() || drain(&mut decoder).is_err() {
                break;
            }
        }
        position.advance(&decoder);
        Ok(position)
    }

    /// Whether it still is one: the journal was not given up, and the bucket does not have more.
    pub(super) fn holds(&self, lane: &Lane, bucket: RecordLsn) -> bool {
        self.has_page && self.end.last >= bucket.last && {
            lane.replay(bucket.last.page_start()).end() >= Some(self.end.last)
        }
    }

    /// Expects the page in which the last record ends, from its beginning on.
    pub(super) fn decoder(&self, origin: &Origin) -> Result<WalStreamDecoder, WalError> {
        let RecordLsn { last, prev } = self.end;
        let version: PgVersion = origin.pg_version;
        WalStreamDecoder::new(&WalStreamConfig {
            version,
            segment_size: origin.wal_segment_size,
            system_identifier: Some(origin.system_identifier),
            feed_from: last.page_start(),
            start: WalStart::Record { lsn: last, previous: prev.is_valid().then_some(prev) },
        })
    }

    /// Goes to the last record that a decoder has found.
    pub(super) fn advance(&mut self, decoder: &WalStreamDecoder) {
        let prev = decoder.previous_record().unwrap_or(Lsn::INVALID);
        self.end = RecordLsn { last: decoder.decoded_lsn(), prev };
        self.timeline = decoder.timeline().or(self.timeline);
    }
}

/// Checks all records that are whole.
pub(super) fn drain(decoder: &mut WalStreamDecoder) -> Result<(), WalError> {
    while decoder.next()?.is_some() {}
    Ok(())
}
