//! Makes image layers: all values of some keys as of an LSN, at which reads of later LSNs can end.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use pageserver_api::key::{CompactKey, Key};
use pageserver_api::keyspace::KeySpace;

use super::ongoing::Ongoing;
use super::outputs::{Cuts, Done, Finished, PAGE_BYTES, RoomUsed};
use super::plan::Region;
use super::rewrite::publish_or_abandon;
use crate::context::RequestContext;
use crate::disk_budget::Hold;
use crate::tenant::layer_map::debt::{self, Stack};
use crate::tenant::storage_layer::{ImageLayerWriter, IndexCursor};
use crate::tenant::timeline::state::TimelineState;
use crate::tenant::timeline::{live, read};
use errors::StorageError;
use utils::lsn::Lsn;
use virtual_file::fs;

/// Maximum number of keys rebuilt at once.
const PIECE_KEYS: u64 = 512;
/// Pieces read at once: while the disk is waited for, and while images are compressed.
const PIECES_AT_ONCE: usize = 3;
/// Images written between two chances for other tasks: compressing one takes some 50 microseconds.
const IMAGES_AT_ONCE: usize = 8;

/// Makes images of `region` and adds them to the timeline's layers. If a page cannot be rebuilt, makes none, and sees
/// to it that none are made of that page again.
pub(super) async fn make(
    state: &TimelineState,
    region: &Region,
    room: &Hold,
    ctx: &RequestContext,
) -> Result<Done, StorageError> {
    let _pin = Pin::new(state, region.lsn)?;
    let layers = state.layers();
    let below = layers.map.iter().filter(|layer| layer.desc().lsn_range.start <= region.lsn);
    let stacks: Vec<Stack> = debt::stacks(below).into_iter().filter_map(|it| within(it, region)).collect();
    let bounds = stacks.iter().filter_map(|stack| stack.image.as_ref());
    let bounds = bounds.flat_map(|image| [image.desc().key_range.start, image.desc().key_range.end]).collect();
    let mut images = Images {
        state,
        region,
        live: live::at(state, region.lsn, ctx).await?,
        cuts: Cuts::new(bounds, state.compaction_policy().file_bytes),
        start: region.keys.start,
        last: None,
        current: None,
        finished: Finished::default(),
        used: RoomUsed::new(room),
        has_ended: false,
        ctx,
    };
    match images.write(&stacks).await {
        Ok(true) => {}
        Ok(false) => {
            images.give_up().await.abandon().await;
            return Ok(Done::default());
        }
        Err(error) => {
            images.give_up().await.abandon().await;
            return Err(error);
        }
    }
    let finished = images.finished;
    if finished.is_empty() {
        return Err(StorageError::Invalid(format!("there are no keys in {:?}, of which images were due", region.keys)));
    }
    let inputs = stacks.iter().flat_map(|stack| stack.image.iter().chain(&stack.deltas));
    let mut inputs: Vec<_> = inputs.collect();
    inputs.sort_by_key(|layer| layer.identity().file_id);
    inputs.dedup_by_key(|layer| layer.identity().file_id);
    let (bytes_in, bytes_out) = (inputs.iter().map(|layer| layer.desc().file_size).sum(), finished.bytes());
    let published = publish_or_abandon(state, &[], finished, room, || true).await?;
    Ok(Done { bytes_in, bytes_out, published })
}

/// Keeps an LSN readable while images of it are made.
struct Pin<'a> {
    state: &'a TimelineState,
    lsn: Lsn,
}

impl<'a> Pin<'a> {
    fn new(state: &'a TimelineState, lsn: Lsn) -> Result<Self, StorageError> {
        let mut keeping = state.keeping.lock();
        state.check_own(lsn, None).map_err(|cutoff| read::below_cutoff(state, lsn, cutoff))?;
        keeping.pin(lsn);
        Ok(Self { state, lsn })
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.state.keeping.lock().unpin(self.lsn);
    }
}

/// The part of `stack` in the region.
fn within(stack: Stack, region: &Region) -> Option<Stack> {
    let keys = stack.keys.start.max(region.keys.start)..stack.keys.end.min(region.keys.end);
    (keys.start < keys.end).then_some(Stack { keys, ..stack })
}

/// Pages found, or why not, by key.
type Pages = BTreeMap<Key, Result<Bytes, StorageError>>;

/// Neighboring keys that are rebuilt together.
#[derive(Debug, Default)]
struct Piece {
    keys: Vec<CompactKey>,
    /// Stored bytes of their versions.
    bytes: u64,
}

impl Piece {
    /// Whether more of them would take more memory than a job may: a third of it for versions, a third for images, each
    /// in as many parts as pieces are read at once.
    fn is_full(&self, memory: u64) -> bool {
        let part = memory / 3 / PIECES_AT_ONCE as u64;
        self.keys.len() as u64 >= (part / PAGE_BYTES).clamp(1, PIECE_KEYS) || self.bytes >= part
    }
}

struct Images<'a> {
    state: &'a TimelineState,
    region: &'a Region,
    /// The keys in use, if that is known. The others get no image.
    live: Option<KeySpace>,
    cuts: Cuts,
    /// Where the current layer begins.
    start: Key,
    /// The last key written.
    last: Option<Key>,
    current: Option<ImageLayerWriter>,
    finished: Finished,
    used: RoomUsed<'a>,
    /// This is as much as one job may write.
    has_ended: bool,
    ctx: &'a RequestContext,
}

impl<'a> Images<'a> {
    /// Writes the images of all keys, or of the first ones, as many as one job may. Returns false if one could not be
    /// rebuilt.
    async fn write(&mut self, stacks: &[Stack]) -> Result<bool, StorageError> {
        let mut piece = Piece::default();
        let mut reading = Ongoing::default();
        for stack in stacks {
            let mut cursors = Vec::new();
            for layer in stack.image.iter().chain(&stack.deltas) {
                // What comes to exist later has nothing to make an image of.
                let end = self.region.lsn + 1;
                cursors.push(reading.beside(layer.cursor_below(&stack.keys, end, self.ctx)).await?);
            }
            while let Some((key, bytes)) = reading.beside(next_key(&mut cursors)).await? {
                if !self.is_live(key) {
                    continue;
                }
                piece.keys.push(key);
                piece.bytes += bytes;
                if !piece.is_full(self.state.conf.compaction.memory) {
                    continue;
                }
                reading.push(self.read(std::mem::take(&mut piece)));
                if reading.len() >= PIECES_AT_ONCE
                    && let Some(pages) = reading.next().await
                    && !reading.beside(self.put(pages?)).await?
                {
                    return Ok(false);
                }
                if self.has_ended {
                    return Ok(true);
                }
            }
        }
        if !piece.keys.is_empty() {
            reading.push(self.read(piece));
        }
        while let Some(pages) = reading.next().await {
            if !reading.beside(self.put(pages?)).await? {
                return Ok(false);
            }
        }
        if self.has_ended {
            return Ok(true);
        }
        if self.current.is_none() && self.live.is_some() {
            // Without any images it says that there is nothing here.
            self.current = Some(self.begin_layer().await?);
        }
        self.end_layer(self.region.keys.end).await?;
        Ok(true)
    }

    /// Rebuilds the pages of a piece.
    fn read(&self, Piece { keys, .. }: Piece) -> impl Future<Output = Result<Pages, StorageError>> + use<'a> {
        let (state, lsn, ctx) = (self.state, self.region.lsn, self.ctx.at_pace(self.state.pace_of_jobs()));
        let all = keys.first().zip(keys.last());
        let all = all.map(|(first, last)| Key::from_compact(*first)..Key::from_compact(*last).next());
        let space = match (all, &self.live) {
            (Some(all), Some(live)) => live.intersect(&all),
            (Some(all), None) => KeySpace::single(all),
            (None, _) => KeySpace::default(),
        };
        async move {
            let found = read::get_vectored(state, &space, lsn, &ctx).await?;
            if !found.keys().map(Key::to_compact).eq(keys.iter().copied()) {
                let reason = format!("of {} keys from {:?} on, {} were found", keys.len(), keys.first(), found.len());
                return Err(StorageError::Invalid(reason));
            }
            Ok(found)
        }
    }

    /// Writes pages. Returns false if one could not be rebuilt.
    async fn put(&mut self, pages: Pages) -> Result<bool, StorageError> {
        if self.state.cancel.is_cancelled() {
            return Err(StorageError::Shutdown);
        }
        for (number, (key, value)) in pages.into_iter().enumerate() {
            if number % IMAGES_AT_ONCE == IMAGES_AT_ONCE - 1 {
                let current = self.current.as_ref().map_or(0, ImageLayerWriter::stored_bytes);
                self.used.note(self.finished.bytes() + current);
                tokio::task::yield_now().await;
            }
            if self.last.is_some() && fault::planted(fault::Bug::ImageLosesKey) {
                continue;
            }
            match value {
                Ok(value) => self.put_image(key, &value).await?,
                Err(error) => {
                    tracing::warn!(timeline = %self.state.timeline_id, "no images are made around a page: {error}");
                    self.state.compaction.quarantined.lock().push(key);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    fn is_live(&self, key: CompactKey) -> bool {
        self.live.as_ref().is_none_or(|live| live.contains(&Key::from_compact(key)))
    }

    async fn put_image(&mut self, key: Key, image: &[u8]) -> Result<(), StorageError> {
        if let Some(last) = self.last.replace(key)
            && let Some(current) = &self.current
            && let Some(end) = self.cuts.between(last, key, current.stored_bytes())
        {
            self.end_layer(end).await?;
            self.has_ended = self.finished.bytes() >= self.state.compaction_policy().job_bytes_max;
        }
        if self.has_ended {
            return Ok(());
        }
        if self.current.is_none() {
            self.current = Some(self.begin_layer().await?);
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.put_image(key, image).await
    }

    async fn begin_layer(&mut self) -> Result<ImageLayerWriter, StorageError> {
        let TimelineState { conf, timeline_id, tenant_shard_id, .. } = self.state;
        let keys: Range<Key> = self.start..self.region.keys.end;
        let at = self.region.lsn;
        let writer = ImageLayerWriter::create(conf, *timeline_id, *tenant_shard_id, keys, at, self.ctx).await?;
        Ok(writer.at_pace(self.state.pace_of_jobs()))
    }

    async fn end_layer(&mut self, end: Key) -> Result<(), StorageError> {
        let Some(current) = self.current.take() else { return Ok(()) };
        let temp = current.path().to_owned();
        match current.finish_at(end, self.ctx).await {
            Ok(file) => self.finished.push(file),
            Err(error) => {
                let _ = fs::unlink(&temp).await;
                return Err(error);
            }
        }
        self.start = end;
        Ok(())
    }

    async fn give_up(self) -> Finished {
        if let Some(current) = self.current {
            let _ = fs::unlink(current.path()).await;
        }
        self.finished
    }
}

/// The next key that any of the cursors has, and the bytes of its versions.
async fn next_key(cursors: &mut [IndexCursor]) -> Result<Option<(CompactKey, u64)>, StorageError> {
    let mut next: Option<CompactKey> = None;
    for cursor in cursors.iter_mut() {
        cursor.fill().await?;
        let key = cursor.peek().map(|entry| entry.key);
        next = next.into_iter().chain(key).min();
    }
    let Some(next) = next else { return Ok(None) };
    let mut bytes = 0;
    for cursor in cursors {
        while let Some(entry) = cursor.peek().filter(|entry| entry.key == next) {
            bytes += u64::from(entry.len);
            cursor.advance();
            cursor.fill().await?;
        }
    }
    Ok(Some((next, bytes)))
}
