//! Makes images of all that a branch inherits, as of the LSN where it branches off: with them, it needs its ancestor no
//! more. They are published file by file, so an interrupted attempt is continued by the next one.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use camino::Utf8PathBuf;
use pageserver_api::key::{CompactKey, Key};
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::outputs::{Finished, PAGE_BYTES};
use super::rewrite::publish_or_abandon;
use super::{room_for, turn};
use crate::context::{DownloadBehavior, Pace, RequestContext};
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::Layer;
use crate::tenant::layer_map::invariants::STORED_KEYS_END;
use crate::tenant::layer_map::mark::{Visit, visit};
use crate::tenant::storage_layer::{ImageLayerWriter, IndexCursor, PersistentLayerDesc};
use crate::tenant::timeline::state::{Branching, TimelineState};
use crate::tenant::timeline::work::Lane;
use crate::tenant::timeline::{flush, live, read};
use errors::{ErrorKind, StorageError};
use virtual_file::fs;

/// Maximum number of keys rebuilt at once.
const PIECE_KEYS: u64 = 2048;
/// Images written between two chances for other tasks.
const IMAGES_AT_ONCE: usize = 64;
/// Bytes of room taken at least.
const ROOM_MIN: u64 = 1 << 20;

/// The keys of which the branch has no images of its own yet as of `lsn`, its branch point.
pub(in crate::tenant::timeline) fn missing(state: &TimelineState, lsn: Lsn) -> KeySpace {
    let layers = state.layers();
    let images = layers.map.iter().map(|layer| layer.desc());
    let images = images.filter(|desc| !desc.is_delta && desc.lsn_range.start == lsn);
    let mut missing = KeySpace::single(Key::MIN..STORED_KEYS_END);
    missing.subtract(&KeySpace::from_ranges(images.map(|desc| desc.key_range.clone()).collect()));
    missing
}

/// Makes images of all keys that have none.
///
/// # Errors
/// That of the first page that cannot be read, and then no image is made around it; those of disk and bucket.
pub(in crate::tenant::timeline) async fn make_all(
    state: &TimelineState,
    branching: &Branching,
) -> Result<(), StorageError> {
    let ctx = RequestContext::new(TaskKind::Compaction, DownloadBehavior::Download).at_pace(Pace::GivesWay);
    if missing(state, branching.lsn).is_empty() {
        return Ok(());
    }
    make_durable(branching, &ctx).await?;
    let live = live::at(state, branching.lsn, &ctx).await?;
    let copy = Copy { state, branching, live, ctx: &ctx };
    let all = copy.visits(missing(state, branching.lsn));
    let total = bytes_to_read(&all);
    state.detaching.note(|progress| progress.bytes_total = total);
    while copy.make_next(total).await? {}
    Ok(())
}

/// Has everything up to the branch point in files.
async fn make_durable(branching: &Branching, ctx: &RequestContext) -> Result<(), StorageError> {
    let (state, lsn) = (&branching.state, branching.lsn);
    if state.disk_consistent().last < lsn {
        // After a crash it arrives again.
        state.wait_for_lsn_timeout(lsn, state.conf.wait_lsn_timeout).await?;
        flush::flush(state, ctx).await?;
    }
    match state.ancestor() {
        Some(ancestor) => Box::pin(make_durable(&ancestor, ctx)).await,
        None => Ok(()),
    }
}

/// Bytes of the layers visited, each counted once. Those of all keys do not tell how far it is.
fn bytes_to_read(visits: &[Visit]) -> u64 {
    let sorted = visits.iter().filter(|visit| !visit.layer.desc().is_l0());
    let sizes: HashMap<u64, u64> =
        sorted.map(|visit| (visit.layer.identity().file_id, visit.layer.desc().file_size)).collect();
    sizes.into_values().sum()
}

struct Copy<'a> {
    state: &'a TimelineState,
    branching: &'a Branching,
    /// The keys in use, if that is known. The others get no image.
    live: Option<KeySpace>,
    ctx: &'a RequestContext,
}

impl Copy<'_> {
    /// Makes one more layer. False if none is missing.
    async fn make_next(&self, total: u64) -> Result<bool, StorageError> {
        let state = self.state;
        let _guard = state.enter()?;
        // As other jobs do, which go on between two layers.
        let _worker = state.compaction.worker(Lane::Others).turn.lock().await;
        let usual = state.compaction_policy().file_bytes;
        let _turn = turn(state, &state.conf.resources.compactions, usual).await?;
        state.check_writable()?;
        let missing = missing(state, self.branching.lsn);
        let Some(keys) = missing.ranges().first().cloned() else { return Ok(false) };
        let left = bytes_to_read(&self.visits(missing));
        state.detaching.note(|progress| progress.bytes_done = total.saturating_sub(left));
        let visits = self.visits(KeySpace::single(keys.clone()));
        let intended = state.compaction_policy().file_bytes.min(bytes_to_read(&visits)).max(ROOM_MIN);
        let room = room_for(state, intended + intended / 8).await?;
        let mut finished = Finished::default();
        finished.push(self.write(keys, visits).await?);
        let bytes = finished.bytes();
        room.note_written(bytes);
        let published = publish_or_abandon(state, &[], finished, &room, || true).await;
        published.inspect_err(|error| state.note_error(error))?;
        drop(room);
        state.detaching.note(|progress| progress.bytes_written += bytes);
        Ok(true)
    }

    /// What reads of `keys` as of the branch point take from layers of the ancestors.
    fn visits(&self, keys: KeySpace) -> Vec<Visit> {
        let mut visits = Vec::new();
        if fault::planted(fault::Bug::ImageOfBranchWithoutAncestor) {
            return visits;
        }
        let (mut wanted, mut lsn) = (keys, self.branching.lsn);
        let mut state = Arc::clone(&self.branching.state);
        while !wanted.is_empty() {
            let (ancestor, layers) = (state.ancestor(), state.layers());
            wanted = visit(&layers.map, &wanted, lsn + 1, |visit| visits.push(visit));
            let Some(ancestor) = ancestor else { break };
            lsn = lsn.min(ancestor.lsn);
            state = Arc::clone(&ancestor.state);
        }
        visits
    }

    /// Writes a layer of the first of `keys`, as many as make a file.
    async fn write(
        &self,
        keys: Range<Key>,
        visits: Vec<Visit>,
    ) -> Result<(PersistentLayerDesc, Utf8PathBuf), StorageError> {
        let TimelineState { conf, timeline_id, tenant_shard_id, .. } = self.state;
        let (lsn, all) = (self.branching.lsn, keys.clone());
        let writer = ImageLayerWriter::create(conf, *timeline_id, *tenant_shard_id, all, lsn, self.ctx).await?;
        let writer = writer.at_pace(Pace::GivesWay);
        let temp = writer.path().to_owned();
        let written = self.fill(writer, keys, Keys::new(visits)).await;
        if written.is_err() {
            let _ = fs::unlink(&temp).await;
        }
        written
    }

    async fn fill(
        &self,
        mut writer: ImageLayerWriter,
        range: Range<Key>,
        mut keys: Keys,
    ) -> Result<(PersistentLayerDesc, Utf8PathBuf), StorageError> {
        let policy = self.state.compaction_policy();
        // A third of the memory for versions, a third for images.
        let at_once = (policy.memory / 3).min(policy.file_bytes) / PAGE_BYTES;
        let (mut piece, mut bytes) = (Vec::new(), 0);
        while let Some((key, len)) = keys.next(self.ctx).await? {
            if self.live.as_ref().is_some_and(|live| !live.contains(&Key::from_compact(key))) {
                continue;
            }
            piece.push(key);
            bytes += len;
            if piece.len() as u64 >= at_once.clamp(1, PIECE_KEYS) || bytes >= policy.memory / 3 {
                self.put(&mut writer, std::mem::take(&mut piece)).await?;
                bytes = 0;
                if writer.stored_bytes() >= policy.file_bytes {
                    return writer.finish_at(Key::from_compact(key).next(), self.ctx).await;
                }
            }
        }
        self.put(&mut writer, piece).await?;
        // A layer of no keys at all says that there are none.
        writer.finish_at(range.end, self.ctx).await
    }

    /// Rebuilds and writes the values of `keys`.
    async fn put(&self, writer: &mut ImageLayerWriter, keys: Vec<CompactKey>) -> Result<(), StorageError> {
        let (Some(first), Some(last)) = (keys.first(), keys.last()) else { return Ok(()) };
        if self.state.cancel.is_cancelled() {
            return Err(StorageError::Shutdown);
        }
        let all = Key::from_compact(*first)..Key::from_compact(*last).next();
        let space = self.live.as_ref().map_or_else(|| KeySpace::single(all.clone()), |live| live.intersect(&all));
        let found = match read::get_vectored(self.state, &space, self.branching.lsn, self.ctx).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return Err(self.first_damaged(&keys).await.unwrap_or(error));
            }
            found => found?,
        };
        if !found.keys().map(Key::to_compact).eq(keys.iter().copied()) {
            let reason = format!("of {} keys from {first:?} on, {} were found", keys.len(), found.len());
            return Err(StorageError::Invalid(reason));
        }
        for (number, (key, value)) in found.into_iter().enumerate() {
            if number % IMAGES_AT_ONCE == IMAGES_AT_ONCE - 1 {
                tokio::task::yield_now().await;
            }
            let value = value.map_err(|error| needed_for(key, error))?;
            writer.put_image(key, &value).await?;
        }
        self.state.detaching.note(|progress| progress.pages += keys.len() as u64);
        Ok(())
    }

    /// The error of the first of `keys` that cannot be read.
    async fn first_damaged(&self, keys: &[CompactKey]) -> Option<StorageError> {
        for key in keys.iter().map(|key| Key::from_compact(*key)) {
            if let Err(error) = read::get(self.state, key, self.branching.lsn, self.ctx).await {
                return Some(needed_for(key, error));
            }
        }
        None
    }
}

/// Says which key cannot be read.
fn needed_for(key: Key, error: StorageError) -> StorageError {
    match error {
        StorageError::Corrupt { path, offset, reason } => {
            let reason = format!("{reason}. Without it key {key} cannot become the branch's own");
            StorageError::Corrupt { path, offset, reason }
        }
        other => other,
    }
}

/// The keys that reads would find in layers, in order. Opens a layer when its keys are reached.
struct Keys {
    /// Those that are not reached yet; the next one last.
    later: Vec<Visit>,
    open: Vec<Open>,
}

struct Open {
    cursor: IndexCursor,
    lsns: Range<Lsn>,
    /// Its file stays as long as it may be read.
    _layer: Arc<Layer>,
}

impl Open {
    /// Goes on to the next version that counts.
    async fn fill(&mut self) -> Result<(), StorageError> {
        loop {
            self.cursor.fill().await?;
            if self.cursor.peek().is_none_or(|entry| self.lsns.contains(&entry.lsn)) {
                return Ok(());
            }
            self.cursor.advance();
        }
    }
}

impl Keys {
    fn new(mut visits: Vec<Visit>) -> Self {
        visits.sort_by_key(|visit| std::cmp::Reverse(visit.keys.start));
        Self { later: visits, open: Vec::new() }
    }

    /// The next key, and the bytes of its versions.
    async fn next(&mut self, ctx: &RequestContext) -> Result<Option<(CompactKey, u64)>, StorageError> {
        let next = loop {
            let next = self.open.iter().filter_map(|open| open.cursor.peek()).map(|entry| entry.key).min();
            let is_reached = |visit: &mut Visit| next.is_none_or(|next| visit.keys.start <= Key::from_compact(next));
            let Some(Visit { keys, lsns, layer }) = self.later.pop_if(is_reached) else { break next };
            let cursor = layer.cursor(&keys, ctx).await?;
            let mut open = Open { cursor, lsns, _layer: layer };
            open.fill().await?;
            self.open.push(open);
        };
        let Some(next) = next else { return Ok(None) };
        let mut bytes = 0;
        for open in &mut self.open {
            while let Some(entry) = open.cursor.peek().filter(|entry| entry.key == next) {
                bytes += u64::from(entry.len);
                open.cursor.advance();
                open.fill().await?;
            }
        }
        self.open.retain(|open| open.cursor.peek().is_some());
        Ok(Some((next, bytes)))
    }
}
