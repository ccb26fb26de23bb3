//! The delta layers that a job writes: cut where the layers below them are cut, so that later jobs find layers that
//! belong together.

use std::ops::Range;
use std::sync::Arc;

use camino::Utf8PathBuf;
use pageserver_api::key::{CompactKey, Key};
use utils::lsn::Lsn;

use crate::context::RequestContext;
use crate::disk_budget::Hold;
use crate::tenant::layer_map::Layer;
use crate::tenant::storage_layer::{DeltaLayerWriter, PersistentLayerDesc, read_identity};
use crate::tenant::timeline::state::TimelineState;
use errors::StorageError;
use virtual_file::fs;

/// Bytes of most values.
pub(super) const PAGE_BYTES: u64 = 8192;

/// What one job did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    /// The layers were replaced; otherwise they had changed meanwhile.
    pub(crate) published: bool,
}

/// Decides where one layer ends and the next begins.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Preferred places, ascending.
    places: Vec<Key>,
    /// Intended size of a layer.
    bytes: u64,
    /// Whether some places are preferred to others.
    is_ranked: bool,
}

impl Cuts {
    /// Cuts at the first of `places` where a layer is about as large as intended.
    pub(super) fn new(mut places: Vec<Key>, bytes: u64) -> Self {
        places.sort_unstable();
        places.dedup();
        Self { places, bytes, is_ranked: false }
    }

    /// Cuts at places that most layers would be cut at, however large their neighbors are: each place has a rank, and
    /// the smaller a layer is, the higher that must be. So layers of different jobs have the same bounds often enough
    /// that those to be merged are few.
    pub(super) fn ranked(places: Vec<Key>, bytes: u64) -> Self {
        Self { is_ranked: true, ..Self::new(places, bytes) }
    }

    /// Where a layer of `written` bytes ends that has `last` as its last key so far, if it ends before `next`.
    pub(super) fn between(&self, last: Key, next: Key, written: u64) -> Option<Key> {
        let least = if self.is_ranked { self.bytes / 2 } else { self.bytes / 4 * 3 };
        if written < least {
            return None;
        }
        let from = self.places.partition_point(|place| *place <= last);
        let within = self.places.get(from..).unwrap_or_default().iter().take_while(|place| **place <= next);
        let place = match self.is_ranked {
            false => within.copied().next(),
            true => within.copied().max_by_key(rank).filter(|place| rank(place) >= self.least_rank(written)),
        };
        place.or_else(|| (written >= self.bytes / 2 * 3).then_some(next))
    }

    fn least_rank(&self, written: u64) -> u32 {
        let eighths = (written * 8 / self.bytes.max(1)).saturating_sub(4);
        4u64.saturating_sub(eighths) as u32
    }
}

/// How much a place is preferred: each rank is half as frequent as the one below it.
fn rank(place: &Key) -> u32 {
    let folded = place.to_i128() as u128;
    // Any mixing function will do (here: of splitmix64), but it must remain the same.
    let mut mixed = (folded as u64) ^ ((folded >> 64) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ (mixed >> 31)).trailing_zeros()
}

/// Finished layers.
#[derive(Debug, Default)]
pub(super) struct Finished {
    /// Under temporary names.
    files: Vec<(PersistentLayerDesc, Utf8PathBuf)>,
    /// Those that have their final names.
    placed: Vec<Arc<Layer>>,
}

impl Finished {
    pub(super) fn push(&mut self, file: (PersistentLayerDesc, Utf8PathBuf)) {
        self.files.push(file);
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(desc, _)| desc.file_size).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Gives the files their final names, durably.
    pub(super) async fn place(&mut self, state: &TimelineState) -> Result<Vec<Arc<Layer>>, StorageError> {
        for (desc, temp) in &self.files {
            let (identity, resources) = (read_identity(temp).await?, &state.conf.resources);
            let layer = Layer::new(resources, &state.dir, desc.clone(), state.layer_generation(), identity);
            fs::rename(temp, layer.path()).await?;
            self.placed.push(Arc::new(layer));
        }
        fs::fsync_dir(&state.dir).await?;
        Ok(self.placed.clone())
    }

    /// Removes the files, whatever they are called by now.
    pub(super) async fn abandon(self) {
        let placed = self.placed.iter().map(|layer| layer.path());
        for name in self.files.iter().map(|(_, temp)| temp.as_path()).chain(placed) {
            if let Err(error) = fs::unlink(name).await {
                tracing::warn!("not removed until the next start: {error}");
            }
        }
    }
}

/// How much of the room that a job has taken is written.
pub(super) struct RoomUsed<'a> {
    room: &'a Hold,
    bytes: u64,
}

impl<'a> RoomUsed<'a> {
    pub(super) fn new(room: &'a Hold) -> Self {
        Self { room, bytes: 0 }
    }

    /// Notes that `bytes` are on disk in all.
    pub(super) fn note(&mut self, bytes: u64) {
        self.room.note_written(bytes.saturating_sub(self.bytes));
        self.bytes = self.bytes.max(bytes);
    }
}

/// See the module's documentation.
pub(super) struct Outputs<'a> {
    state: &'a TimelineState,
    lsns: Range<Lsn>,
    cuts: Cuts,
    /// Keys that the layers to come cover together.
    keys: Range<Key>,
    current: Option<DeltaLayerWriter>,
    last: Option<CompactKey>,
    finished: Finished,
    used: RoomUsed<'a>,
    ctx: &'a RequestContext,
}

impl<'a> Outputs<'a> {
    /// Layers that together cover exactly `keys` and `lsns`.
    pub(super) fn new(
        state: &'a TimelineState,
        keys: Range<Key>,
        lsns: Range<Lsn>,
        cuts: Cuts,
        room: &'a Hold,
        ctx: &'a RequestContext,
    ) -> Self {
        let (finished, current, last) = (Finished::default(), None, None);
        Self { state, lsns, cuts, keys, current, last, finished, used: RoomUsed::new(room), ctx }
    }

    /// Appends the next version in order of (key, LSN).
    pub(super) async fn put(
        &mut self,
        key: CompactKey,
        lsn: Lsn,
        value: &[u8],
        will_init: bool,
    ) -> Result<(), StorageError> {
        if let Some(last) = self.last.replace(key).filter(|last| *last != key)
            && let Some(current) = &self.current
            && let Some(end) =
                self.cuts.between(Key::from_compact(last), Key::from_compact(key), current.stored_bytes())
        {
            self.end_layer(end).await?;
        }
        if self.current.is_none() {
            self.current = Some(self.begin_layer().await?);
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.put_serialized(key, lsn, value, will_init).await
    }

    /// Tells the disk budget how much is on disk by now.
    pub(super) fn note_written(&mut self) {
        let current = self.current.as_ref().map_or(0, DeltaLayerWriter::stored_bytes);
        self.used.note(self.finished.bytes() + current);
    }

    async fn begin_layer(&mut self) -> Result<DeltaLayerWriter, StorageError> {
        let TimelineState { conf, timeline_id, tenant_shard_id, .. } = self.state;
        let (keys, lsns) = (self.keys.clone(), self.lsns.clone());
        let writer = DeltaLayerWriter::create(conf, *timeline_id, *tenant_shard_id, keys, lsns, self.ctx).await?;
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
        self.keys.start = end;
        Ok(())
    }

    /// Ends the last layer if all versions were `put`; otherwise, or if that fails, removes all that was written.
    pub(super) async fn finish(mut self, put: Result<(), StorageError>) -> Result<Finished, StorageError> {
        let ended = match put {
            Ok(()) => self.end_layer(self.keys.end).await,
            Err(error) => Err(error),
        };
        let Err(error) = ended else { return Ok(self.finished) };
        if let Some(current) = self.current {
            let _ = fs::unlink(current.path()).await;
        }
        self.finished.abandon().await;
        Err(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_cut_where_others_are_or_when_they_are_too_large() {
        let key = |n| Key { field1: 0, field6: n, ..Key::MIN };
        let cuts = Cuts::new(vec![key(20), key(10), key(20)], 100);
        assert_eq!(cuts.between(key(5), key(9), 90), None);
        assert_eq!(cuts.between(key(5), key(10), 60), None, "too small yet");
        assert_eq!(cuts.between(key(5), key(10), 90), Some(key(10)));
        assert_eq!(cuts.between(key(5), key(15), 90), Some(key(10)));
        assert_eq!(cuts.between(key(10), key(15), 90), None);
        assert_eq!(cuts.between(key(10), key(15), 150), Some(key(15)), "too large");
        assert_eq!(cuts.between(key(30), key(31), 149), None);
    }

    /// Two jobs of which one writes twice as much for each key.
    #[test]
    fn layers_of_different_jobs_have_bounds_in_common() {
        let key = |n| Key { field1: 0, field6: n, ..Key::MIN };
        let cuts = Cuts::ranked((0..1000).map(|n| key(10 * n)).collect(), 1000);
        let bounds = |bytes: u64, first: u64| {
            let (mut written, mut found) = (first, Vec::new());
            for n in 0..10_000 {
                if let Some(end) = cuts.between(key(n), key(n + 1), written) {
                    found.push(end);
                    written = 0;
                }
                written += bytes;
            }
            found
        };
        let (one, other, dense) = (bounds(10, 0), bounds(10, 700), bounds(20, 0));
        let common = |one: &[Key], other: &[Key]| one.iter().filter(|key| other.contains(key)).count();
        assert!((80..150).contains(&one.len()) && (160..300).contains(&dense.len()), "{} {}", one.len(), dense.len());
        assert!(common(&one, &other) * 2 > one.len(), "{} of {}", common(&one, &other), one.len());
        assert!(common(&one, &dense) * 3 > one.len(), "{} of {}", common(&one, &dense), one.len());
        assert!(one.iter().all(|key| key.field6 % 10 == 0), "only at places");
    }
}
