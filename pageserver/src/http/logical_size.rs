//! Sizes of what timelines hold, as Postgres would count them. They take reads of the sizes of all relations, so a
//! timeline's description has those of a moment ago, and finding newer ones goes on in the background.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use pageserver_api::reltag::SlruKind;
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use engine::context::RequestContext;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use pgdata::TimelineStore;
use pgdata::listing::Listing;

/// Sizes are not found out again sooner.
const PERIOD: Duration = Duration::from_secs(10);
const PAGE: u64 = 8192;

/// The size of a timeline as of an LSN.
#[derive(Clone, Copy, Debug)]
pub(super) struct LogicalSize {
    /// The LSN.
    pub(super) lsn: Lsn,
    /// Bytes of all relations, all forks included.
    pub(super) bytes: u64,
    /// Entries of directories: databases, prepared transactions, relation forks, files besides relations (always 0),
    /// segments of clog, of multixact members and of multixact offsets.
    pub(super) entries: [u64; 7],
}

#[derive(Debug, Default)]
struct Entry {
    known: Option<LogicalSize>,
    /// When somebody last began to find it out.
    began: Option<Instant>,
    is_busy: bool,
}

type Entries = Mutex<HashMap<(TenantShardId, TimelineId), Entry>>;

/// What is known of all timelines.
#[derive(Debug, Default)]
pub(crate) struct LogicalSizes(Arc<Entries>);

impl LogicalSizes {
    /// What is known of the timeline. If that is not as of now, newer sizes are found out in the background.
    pub(super) fn latest(
        &self,
        timeline: &Timeline,
        manager: &TenantManager,
        ctx: &RequestContext,
    ) -> Option<LogicalSize> {
        let (id, lsn, now) = (id_of(timeline), timeline.last_record_lsn(), env::clock::now());
        let mut entries = self.0.lock();
        if !entries.contains_key(&id) {
            entries.retain(|(tenant, timeline), _| manager.get(*tenant, *timeline).is_ok());
        }
        let entry = entries.entry(id).or_default();
        let known = entry.known;
        let is_due = entry.began.is_none_or(|began| now.saturating_duration_since(began) >= PERIOD);
        if known.is_none_or(|known| known.lsn != lsn) && is_due && !entry.is_busy {
            (entry.began, entry.is_busy) = (Some(now), true);
            let (entries, timeline, ctx) = (Arc::clone(&self.0), timeline.clone(), ctx.clone());
            drop(env::spawn::task("logical size", async move {
                let found = find(&timeline, lsn, &ctx).await;
                note(&entries, id, found.ok());
            }));
        }
        known
    }

    /// The sizes as of the last record, read now.
    ///
    /// # Errors
    /// Those of the reads.
    pub(super) async fn now(&self, timeline: &Timeline, ctx: &RequestContext) -> Result<LogicalSize, StorageError> {
        let found = find(timeline, timeline.last_record_lsn(), ctx).await?;
        note(&self.0, id_of(timeline), Some(found));
        Ok(found)
    }
}

fn id_of(timeline: &Timeline) -> (TenantShardId, TimelineId) {
    (timeline.tenant_shard_id(), timeline.timeline_id())
}

fn note(entries: &Entries, id: (TenantShardId, TimelineId), found: Option<LogicalSize>) {
    let mut entries = entries.lock();
    let entry = entries.entry(id).or_default();
    entry.is_busy = false;
    let is_newer = |found: &LogicalSize| entry.known.is_none_or(|known| known.lsn <= found.lsn);
    if let Some(found) = found.filter(is_newer) {
        entry.known = Some(found);
    }
}

async fn find(timeline: &Timeline, lsn: Lsn, ctx: &RequestContext) -> Result<LogicalSize, StorageError> {
    let store = TimelineStore::new(timeline.clone(), ctx.clone());
    let listing = Listing::new(&store, lsn);
    let databases = listing.databases().await?;
    let (mut forks, mut blocks) = (0, 0);
    for (spcnode, dbnode) in databases.keys() {
        for size in listing.relations(*spcnode, *dbnode).await?.into_values() {
            (forks, blocks) = (forks + 1, blocks + u64::from(size));
        }
    }
    let prepared = listing.twophase(timeline.origin().pg_version).await?.len() as u64;
    let mut entries = [databases.len() as u64, prepared, forks, 0, 0, 0, 0];
    let kinds = [SlruKind::Clog, SlruKind::MultiXactMembers, SlruKind::MultiXactOffsets];
    for (count, kind) in entries[4..].iter_mut().zip(kinds) {
        *count = listing.slru_segments(kind).await?.len() as u64;
    }
    Ok(LogicalSize { lsn, bytes: blocks * PAGE, entries })
}
