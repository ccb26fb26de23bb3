//! How well a timeline is compacted, what is owed, why nothing is done about it, and what keeps space from coming back.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use utils::lsn::Lsn;

use super::compact;
use super::compact::owed::{self, Debt};
use super::debt::CompactionCounts;
use super::gc;
use super::state::TimelineState;
use super::work::{Doing, LastLook, SortedSums};
use crate::tenant::layer_map::debt::{self, Stack};
use crate::tenant::layer_map::{Layer, LayerMap};
use metrics::{CompactionJob, LabelEnum};

/// What compaction does, or why it does nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Activity {
    /// A job runs.
    Running(CompactionJob),
    /// A job waits for that of another timeline.
    WaitsForTurn,
    /// There is no room on the disk for a job, with what the last failure says and when the next attempt is, if one
    /// has failed.
    NoRoom(Option<(String, Duration)>),
    /// The last job failed: why, and when the next attempt is.
    Failed(String, Duration),
    /// Compaction is turned off.
    Off,
    /// The timeline takes no writes: why.
    ReadOnly(String),
    /// A job is due, and about to begin.
    Due,
    /// Jobs are due since before the timeline was opened, and wait until something changes.
    Deferred,
    /// Nothing is due.
    Idle,
    /// Nothing is due, and the timeline is archived.
    Archived,
}

/// Bytes that wait to be freed, by what they wait for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Files of layers that were replaced or removed, and that somebody still reads.
    pub read: u64,
    /// Objects of such layers, until an index part without them is confirmed.
    pub unconfirmed: u64,
    /// History that nothing keeps, until it is removed. About: branches made since the last removal are not known.
    pub history: u64,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Condition {
    /// Largest number of sorted delta layers above an image of the same keys.
    pub height: usize,
    /// Number of L0 layers.
    pub l0_layers: usize,
    /// Bytes that the jobs would read that are due.
    pub debt: Debt,
    /// What compaction does, or why nothing.
    pub activity: Activity,
    /// What compaction has done since the timeline was opened.
    pub counts: CompactionCounts,
    /// How long ago a job of each kind last ended well, in the order of [`CompactionJob::ALL`].
    pub since_jobs: Vec<Option<Duration>>,
    /// Bytes of values taken in since the timeline was opened.
    pub taken_in: u64,
    /// Bytes of layers that flushes wrote since then.
    pub flushed: u64,
    /// Bytes of all layers.
    pub stored: u64,
    /// Bytes of the newest images of all keys.
    pub images: u64,
    /// Bytes that wait to be freed.
    pub waiting: Waiting,
    /// What was found when it was last looked for history that nothing keeps.
    pub look: Option<LastLook>,
    /// How long ago history was last removed.
    pub since_removal: Option<Duration>,
}

impl Condition {
    /// Bytes written for each byte of values, by flushes and jobs; `None` if no values were taken in.
    pub fn write_amplification(&self) -> Option<f64> {
        let jobs = CompactionJob::ALL.iter().map(|kind| self.counts.of(*kind).bytes_out).sum::<u64>();
        ratio(self.flushed + jobs, self.taken_in)
    }

    /// Bytes stored for each byte of newest images; `None` if there are no images.
    pub fn space_ratio(&self) -> Option<f64> {
        ratio(self.stored, self.images)
    }
}

/// `part` of `whole`, if there is a whole.
pub fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// The condition of a timeline at this moment.
pub(super) fn of(state: &TimelineState) -> Condition {
    // In this order: what is remembered of an edition is then of its layers, or of later ones.
    let edition = state.edition();
    let map = state.layers().map.clone();
    let sorted = sorted(state, edition, &map);
    let (counts, (taken_in, flushed)) = (*state.compaction.counts.lock(), state.work.volumes());
    let policy = owed::measure(&state.compaction_policy());
    let due = if state.compaction.sort_all.load(Ordering::Relaxed) { 1 } else { policy.l0_layers };
    let debt = Debt {
        sort: owed::unsorted(map.l0_layers(), due, &policy),
        merge: sorted.merge,
        image: sorted.image,
        fold: sorted.fold,
    };
    let confirmed = state.uploader.as_ref().map_or(u64::MAX, |uploader| uploader.confirmed());
    Condition {
        height: sorted.height,
        l0_layers: map.l0_layers().len(),
        debt,
        activity: activity(state, &debt),
        counts,
        since_jobs: CompactionJob::ALL.iter().map(|kind| state.work.since_job(*kind)).collect(),
        taken_in,
        flushed,
        stored: map.total_size(),
        images: sorted.images,
        waiting: Waiting {
            read: state.graveyard.bytes(),
            unconfirmed: state.work.outdated(confirmed),
            history: history(state, edition, &map),
        },
        look: state.work.look(),
        since_removal: state.work.since_removal(),
    }
}

fn activity(state: &TimelineState, debt: &Debt) -> Activity {
    match state.work.doing() {
        Doing::Job(kind) => return Activity::Running(kind),
        Doing::Turn => return Activity::WaitsForTurn,
        Doing::Room => return Activity::NoRoom(None),
        Doing::Nothing => {}
    }
    if state.conf.compaction.l0_layers == 0 {
        return Activity::Off;
    }
    if let Err(error) = state.check_writable() {
        return Activity::ReadOnly(error.to_string());
    }
    let failure = state.compaction.failure();
    if let Some(failure) = failure {
        let again = failure.until.saturating_duration_since(env::clock::now());
        return match state.work.lacks_room() {
            true => Activity::NoRoom(Some((failure.reason, again))),
            false => Activity::Failed(failure.reason, again),
        };
    }
    match (compact::is_due(state), debt.total(), state.is_archived()) {
        (true, 1.., _) => Activity::Due,
        (false, 1.., _) => Activity::Deferred,
        (_, 0, true) => Activity::Archived,
        (_, 0, false) => Activity::Idle,
    }
}

fn sorted(state: &TimelineState, edition: u64, map: &LayerMap) -> SortedSums {
    let known = compact::known(state, map);
    let nothing_due = state.work.nothing_due(edition);
    let key = (edition, nothing_due, known.quarantined.len(), known.dead_images.len() + known.damaged.len());
    state.work.sorted.get(key, || {
        let stacks = debt::stacks(map.iter());
        let policy = owed::measure(&state.compaction_policy());
        // Of branches no images are made.
        let has_images = !nothing_due && state.ancestor().is_none();
        SortedSums {
            height: stacks.iter().map(Stack::height).max().unwrap_or(0),
            merge: if nothing_due { 0 } else { owed::too_tall(&stacks, &policy) },
            image: if has_images { owed::without_image(&stacks, &known, &policy) } else { 0 },
            fold: if has_images { owed::below_cutoff(map, &state.retention.read(), &known, &policy) } else { 0 },
            images: newest_images(&stacks),
        }
    })
}

/// Bytes of the newest images of all keys.
fn newest_images(stacks: &[Stack]) -> u64 {
    let images = stacks.iter().filter_map(|stack| stack.image.as_ref());
    let sizes: HashMap<u64, u64> = images.map(|it| (it.identity().file_id, it.desc().file_size)).collect();
    sizes.into_values().sum()
}

fn history(state: &TimelineState, edition: u64, map: &LayerMap) -> u64 {
    let cutoff = gc::cutoff_now(state);
    state.work.history(edition, cutoff, |needed| unneeded(map, cutoff, needed))
}

/// Bytes of layers that end at or below `cutoff`, that a read as of it does not visit, and that are not in `needed`.
fn unneeded(map: &LayerMap, cutoff: Lsn, needed: &HashSet<u64>) -> u64 {
    if !cutoff.is_valid() {
        return 0;
    }
    let file_id = |layer: &Arc<Layer>| layer.identity().file_id;
    let stacks = debt::stacks(map.iter().filter(|layer| layer.desc().lsn_range.start <= cutoff));
    let visited: HashSet<u64> =
        stacks.iter().flat_map(|stack| stack.image.iter().chain(&stack.deltas)).map(file_id).collect();
    let is_needed = |layer: &Arc<Layer>| {
        layer.desc().lsn_range.end > cutoff + 1 || visited.contains(&file_id(layer)) || needed.contains(&file_id(layer))
    };
    map.iter().filter(|layer| !is_needed(layer)).map(|layer| layer.desc().file_size).sum()
}

#[cfg(test)]
mod tests {
    use camino::Utf8Path;
    use pageserver_api::key::Key;
    use pageserver_api::shard::TenantShardId;
    use utils::id::{TenantId, TimelineId};

    use super::*;
    use crate::resources::Resources;
    use crate::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc};

    /// A layer of keys `keys.0` to `keys.1`, and of LSNs `lsns.0` to `lsns.1`; an image if that is one LSN.
    fn layer(file_id: u64, keys: (u32, u32), lsns: (u64, u64), bytes: u64) -> Arc<Layer> {
        let (tenant, timeline) = (TenantShardId::unsharded(TenantId::from([1; 16])), TimelineId::from([2; 16]));
        let key = |number| Key { field6: number, ..Key::MIN };
        let keys = key(keys.0)..key(keys.1);
        let desc = match lsns.1 - lsns.0 {
            1 => PersistentLayerDesc::new_image(tenant, timeline, keys, Lsn(lsns.0), bytes),
            _ => PersistentLayerDesc::new_delta(tenant, timeline, keys, Lsn(lsns.0)..Lsn(lsns.1), bytes),
        };
        let identity = LayerIdentity { file_id, tail_offset: 4096, filter_blocks: 0 };
        Arc::new(Layer::new(&Resources::default(), Utf8Path::new("/t"), desc, 1, identity))
    }

    #[test]
    fn history_waits_where_an_image_lies_above_it() {
        let layers = vec![
            layer(1, (0, 10), (10, 11), 1),
            layer(2, (0, 10), (11, 20), 2),
            layer(3, (0, 10), (20, 30), 4),
            layer(4, (0, 5), (30, 31), 8),
            layer(5, (0, 10), (30, 40), 16),
        ];
        let map = LayerMap::new(layers).unwrap();
        let none = HashSet::new();
        // As long as some of a layer's keys have no image above it, it is visited.
        assert_eq!(unneeded(&map, Lsn(35), &none), 0);
        let map = map.replaced(&[], vec![layer(6, (5, 10), (30, 31), 32)]).unwrap();
        assert_eq!(unneeded(&map, Lsn(35), &none), 1 + 2 + 4);
        assert_eq!(unneeded(&map, Lsn(35), &HashSet::from([1, 2])), 4, "what other LSNs need does not wait");
        assert_eq!(unneeded(&map, Lsn(29), &none), 0, "there is nothing below the image");
        assert_eq!(unneeded(&map, Lsn::INVALID, &none), 0);
    }

    #[test]
    fn the_newest_images_count_once() {
        let layers = [
            layer(1, (0, 10), (10, 11), 1),
            layer(2, (0, 10), (20, 21), 2),
            layer(3, (2, 4), (21, 30), 4),
            layer(4, (10, 20), (10, 11), 8),
        ];
        assert_eq!(newest_images(&debt::stacks(layers.iter())), 2 + 8);
        assert_eq!((ratio(15, 10), ratio(15, 0)), (Some(1.5), None));
    }
}
