//! Takes in what has arrived: bytes become records, records become values.

use bytes::Bytes;
use tokio::sync::mpsc;
use utils::lsn::Lsn;
use wal_decoder::stream::{WalStart, WalStreamConfig, WalStreamDecoder};

use super::failure::Failure;
use crate::context::{DownloadBehavior, RequestContext};
use crate::ingest::WalIngest;
use crate::pgdata::TimelineStore;
use crate::pgdata::listing::Listing;
use crate::task_mgr::TaskKind;
use crate::tenant::timeline::Timeline;

/// Consecutive bytes of WAL.
pub(super) struct Piece {
    pub(super) start: Lsn,
    pub(super) bytes: Bytes,
}

/// Pieces that may wait, of at most 128 KiB each.
pub(super) const MAX_PIECES: usize = 64;

/// One run of the intake, from the last record that is stored.
pub(super) struct Intake {
    decoder: WalStreamDecoder,
    ingest: WalIngest<TimelineStore>,
    /// The server's timeline that the last record is of.
    postgres_timeline: u32,
}

impl Intake {
    /// Stands behind the last record of `timeline`.
    pub(super) async fn load(timeline: &Timeline) -> Result<Self, Failure> {
        let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Download);
        let store = TimelineStore::new(timeline.clone(), ctx);
        let (at, origin) = (timeline.record_lsn(), timeline.origin());
        let postgres_timeline = Listing::new(&store, at.last).checkpoint().await?.timeline;
        let ingest = WalIngest::load(store, at.last, at.prev).await?;
        let decoder = WalStreamDecoder::new(&WalStreamConfig {
            version: origin.pg_version,
            segment_size: origin.wal_segment_size,
            system_identifier: Some(origin.system_identifier),
            feed_from: at.last.page_start(),
            start: WalStart::Record { lsn: at.last, previous: at.prev.is_valid().then_some(at.prev) },
        })?;
        Ok(Self { decoder, ingest, postgres_timeline })
    }

    /// The byte that must come first.
    pub(super) fn feed_lsn(&self) -> Lsn {
        self.decoder.feed_lsn()
    }

    /// End of the last record.
    pub(super) fn last_record(&self) -> Lsn {
        self.ingest.last_record()
    }

    /// The server's timeline that the last record is of.
    pub(super) fn postgres_timeline(&self) -> u32 {
        self.postgres_timeline
    }

    /// Takes in pieces until there are no more. Whenever none is waiting, all records become visible.
    pub(super) async fn run(mut self, mut pieces: mpsc::Receiver<Piece>) -> Result<(), Failure> {
        while let Some(piece) = pieces.recv().await {
            if let Err(failure) = self.feed(piece).await {
                // What came before is whole, unless it is ingest that failed.
                if !matches!(failure, Failure::Ingest(_)) {
                    self.ingest.commit().await?;
                }
                return Err(failure);
            }
            if pieces.is_empty() {
                self.ingest.commit().await?;
            }
            tokio::task::yield_now().await;
        }
        Ok(self.ingest.commit().await?)
    }

    async fn feed(&mut self, piece: Piece) -> Result<(), Failure> {
        self.decoder.feed_at(piece.start, piece.bytes)?;
        while let Some(record) = self.decoder.next()? {
            self.ingest.ingest(record.start, record.end, &record.bytes).await?;
        }
        Ok(())
    }
}
