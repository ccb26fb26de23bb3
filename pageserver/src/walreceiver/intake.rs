//! The start of the WAL intake: after the last stored record.

use utils::lsn::Lsn;
use wal_decoder::stream::{WalStart, WalStreamConfig, WalStreamDecoder};

use super::failure::Failure;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::timeline::Timeline;
use pgdata::TimelineStore;
use pgdata::ingest::WalIngest;
use pgdata::ingest::pipeline::WalIntake;
use pgdata::listing::Listing;

/// Decoder and ingest, positioned after the last record.
pub(super) struct Beginning {
    decoder: WalStreamDecoder,
    ingest: WalIngest<TimelineStore>,
    /// The server's WAL timeline of the last record.
    postgres_timeline: u32,
}

impl Beginning {
    /// Positions them after the last record of `timeline`.
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

    /// LSN of the first byte to feed.
    pub(super) fn feed_lsn(&self) -> Lsn {
        self.decoder.feed_lsn()
    }

    /// End of the last record.
    pub(super) fn last_record(&self) -> Lsn {
        self.ingest.last_record()
    }

    /// The server's WAL timeline of the last record.
    pub(super) fn postgres_timeline(&self) -> u32 {
        self.postgres_timeline
    }

    /// Starts the intake.
    pub(super) fn start(self) -> WalIntake {
        WalIntake::start(self.decoder, self.ingest)
    }
}
