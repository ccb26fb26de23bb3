//! What is due: pure functions over descriptions of layers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::outputs::PAGE_BYTES;
use super::urgency::{ImagesDue, Urgency};
use crate::config::CompactionPolicy;
use crate::context::RequestContext;
use crate::tenant::layer_map::debt::{Stack, stacks};
use crate::tenant::layer_map::mark::{Marked, Takes, mark};
use crate::tenant::layer_map::{Layer, LayerMap};
use crate::tenant::storage_layer::index_pages;
use crate::tenant::timeline::retention::Retention;
use errors::StorageError;
use metrics::CompactionJob;

/// Layers of one stack that are merged together: at least, and at most.
pub(super) const MERGED: Range<usize> = 3..7;
/// Number of the tallest stacks among which the cheapest merge is sought.
const STACKS_TRIED: usize = 16;
/// If no merge is as small as it should be, one may be larger by this factor.
const LARGER_MERGE: u64 = 4;
/// Keys sampled of each delta layer.
const SAMPLES: usize = 64;
/// Images at the cutoff are not made of keys where less than this fraction of their bytes would go.
const FOLD_GAIN: u64 = 8;
/// An image costs as much to make as a file of this fraction of its page, however well that compresses.
const IMAGE_EFFORT: u64 = 4;
/// An index page of an image layer lists at least so many images, but for the last one.
const IMAGES_PER_INDEX_PAGE: u64 = 1000;
/// An index page of a delta layer lists about so many changes.
const CHANGES_PER_INDEX_PAGE: u64 = 700;
/// What a change counts for at most where it is asked what reads have to apply: a longer one is an image itself, behind
/// which they go no further.
const APPLIED_MAX: u64 = 256;
/// Images are not worth a job below this fraction of a file's intended size.
pub(super) const SMALLEST_IMAGES: u64 = 16;

/// What is to be done next.
#[derive(Clone, Debug)]
pub(crate) enum Job {
    /// Sort these L0 layers by key.
    Sort(Vec<Arc<Layer>>),
    /// Merge these delta layers.
    Merge(Vec<Arc<Layer>>),
    /// Make images of a region, at the end of what is sorted.
    Image(Region),
    /// Make images of a region at the cutoff, so that what is below them goes.
    Fold(Region),
    /// Leave out what no LSN needs of a layer below the cutoff.
    Trim(Trim),
}

/// A layer that is to be trimmed.
#[derive(Clone, Debug)]
pub(crate) struct Trim {
    pub(crate) layer: Arc<Layer>,
    /// What reads take of it.
    pub(super) takes: Takes,
    /// Of each version in order of (key, LSN), whether it is needed.
    pub(super) needed: Arc<Vec<bool>>,
    /// About how many bytes stay.
    pub(crate) bytes: u64,
}

/// Some keys as of an LSN.
#[derive(Clone, Debug)]
pub(crate) struct Region {
    pub(crate) keys: Range<Key>,
    pub(crate) lsn: Lsn,
    /// About how many bytes the images take.
    pub(crate) bytes: u64,
}

/// Keys of which images are due, and about how many bytes these take.
#[derive(Debug)]
pub(crate) struct Due {
    pub(crate) keys: Range<Key>,
    pub(crate) bytes: u64,
    pub(crate) urgency: Urgency,
}

impl Job {
    /// About how many bytes it writes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Job::Sort(inputs) | Job::Merge(inputs) => inputs.iter().map(|layer| layer.desc().file_size).sum(),
            Job::Image(region) | Job::Fold(region) => region.bytes,
            Job::Trim(trim) => trim.bytes,
        }
    }

    pub(crate) fn kind(&self) -> CompactionJob {
        match self {
            Job::Sort(_) => CompactionJob::Sort,
            Job::Merge(_) => CompactionJob::Merge,
            Job::Image(_) => CompactionJob::Image,
            Job::Fold(_) => CompactionJob::Fold,
            Job::Trim(_) => CompactionJob::Trim,
        }
    }
}

/// The oldest L0 layers, if there are at least `due` of them.
pub(crate) fn sort(l0: &[Arc<Layer>], due: usize, policy: &CompactionPolicy) -> Option<Job> {
    if policy.l0_layers == 0 || l0.len() < due {
        return None;
    }
    let mut bytes = 0;
    let fits = |layer: &&Arc<Layer>| {
        bytes += layer.desc().file_size;
        bytes <= policy.job_bytes_max.min(2 * policy.job_bytes)
    };
    let count = l0.iter().take(policy.l0_layers_max).take_while(fits).count().max(1);
    Some(Job::Sort(l0.iter().take(count).cloned().collect()))
}

/// How the bytes of delta layers are spread over their keys. Layers are known by the ids of their files.
#[derive(Debug, Default)]
pub(crate) struct Weights {
    samples: HashMap<u64, Vec<Key>>,
}

impl Weights {
    /// Of all delta layers in `stacks` that reach over more than one of them.
    pub(crate) async fn of(stacks: &[Stack], ctx: &RequestContext) -> Result<Self, StorageError> {
        let mut samples = HashMap::new();
        for stack in stacks {
            for layer in stack.deltas.iter().filter(|layer| layer.desc().key_range != stack.keys) {
                if let Entry::Vacant(entry) = samples.entry(layer.identity().file_id) {
                    entry.insert(layer.sample_keys(SAMPLES, ctx).await?);
                }
            }
        }
        Ok(Self { samples })
    }

    /// As [`Weights::of`], without reading anything: a layer that is not open is taken to be spread evenly.
    pub(super) fn of_open(stacks: &[Stack]) -> Self {
        let mut samples: HashMap<u64, Vec<Key>> = HashMap::new();
        let mut closed: HashSet<u64> = HashSet::new();
        for stack in stacks {
            for layer in stack.deltas.iter().filter(|layer| layer.desc().key_range != stack.keys) {
                let id = layer.identity().file_id;
                match samples.entry(id) {
                    Entry::Occupied(mut known) if closed.contains(&id) => known.get_mut().push(stack.keys.start),
                    Entry::Occupied(_) => {}
                    Entry::Vacant(entry) => {
                        let sampled = layer.sample_open_keys(SAMPLES);
                        if sampled.is_none() {
                            closed.insert(id);
                        }
                        entry.insert(sampled.unwrap_or_else(|| vec![stack.keys.start]));
                    }
                }
            }
        }
        Self { samples }
    }

    /// About how many of the `bytes` of `layer` are about `keys`.
    fn share(&self, layer: &Arc<Layer>, keys: &Range<Key>, bytes: u64) -> u64 {
        match self.samples.get(&layer.identity().file_id) {
            Some(samples) if !samples.is_empty() => {
                let within = samples.iter().filter(|key| keys.contains(key)).count() as u64;
                bytes * within / samples.len() as u64
            }
            _ => bytes,
        }
    }
}

/// Keys and files about which images are due, or not, whatever has changed.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Keys whose pages cannot be rebuilt: none are made.
    pub(crate) quarantined: Vec<Key>,
    /// Files of images of which most are of keys that are no longer in use.
    pub(crate) dead_images: HashSet<u64>,
    /// Files that cannot be read: no job is made of them.
    pub(crate) damaged: HashSet<u64>,
}

impl Known {
    fn is_damaged(&self, layer: &Arc<Layer>) -> bool {
        self.damaged.contains(&layer.identity().file_id)
    }

    /// Whether images can be made of `cell`.
    fn can_image(&self, cell: &Cell) -> bool {
        !cell.is_damaged && !self.quarantined.iter().any(|key| cell.keys.contains(key))
    }
}

/// Neighboring keys with one newest image.
#[derive(Debug)]
pub(super) struct Cell {
    keys: Range<Key>,
    image_bytes: u64,
    /// What its image costs to make, in bytes.
    image_effort: u64,
    delta_bytes: u64,
    /// What of these a read may have to apply.
    applied: u64,
    /// The file of the image.
    image: Option<u64>,
    /// One of its layers cannot be read.
    is_damaged: bool,
}

impl Cell {
    /// Whether as much has changed as an image costs, or what part of it the policy says: then one costs no more than
    /// the changes did.
    pub(super) fn is_due(&self, policy: &CompactionPolicy, known: &Known) -> bool {
        if !known.can_image(self) {
            return false;
        }
        if self.image.is_some_and(|image| known.dead_images.contains(&image)) {
            return true;
        }
        self.delta_bytes >= self.enough(policy)
    }

    /// The bytes of changes from which on its image is due.
    fn enough(&self, policy: &CompactionPolicy) -> u64 {
        let enough = self.image_effort.saturating_mul(policy.image_percent) / 100;
        enough.max(policy.file_bytes / SMALLEST_IMAGES)
    }

    /// Bytes of its image and of what lies above it.
    pub(super) fn bytes(&self) -> u64 {
        self.image_bytes + self.delta_bytes
    }
}

pub(super) fn cells(stacks: &[Stack], weights: &Weights, known: &Known) -> Vec<Cell> {
    let image = |stack: &Stack| stack.image.as_ref().map(|image| image.identity().file_id);
    let same = |one: &Stack, other: &Stack| one.keys.end == other.keys.start && image(one) == image(other);
    let mut cells = Vec::new();
    for part in stacks.chunk_by(same) {
        let [first, .., last] = part else {
            cells.extend(part.iter().map(|stack| cell(part, stack.keys.clone(), weights, known)));
            continue;
        };
        cells.push(cell(part, first.keys.start..last.keys.end, weights, known));
    }
    cells
}

fn cell(part: &[Stack], keys: Range<Key>, weights: &Weights, known: &Known) -> Cell {
    let mut deltas: Vec<&Arc<Layer>> = part.iter().flat_map(|stack| &stack.deltas).collect();
    deltas.sort_by_key(|layer| layer.identity().file_id);
    deltas.dedup_by_key(|layer| layer.identity().file_id);
    let image = part.first().and_then(|stack| stack.image.as_ref());
    let is_damaged = deltas.iter().copied().chain(image).any(|layer| known.is_damaged(layer));
    let delta_bytes = deltas.iter().map(|layer| weights.share(layer, &keys, layer.desc().file_size)).sum();
    let applied = deltas.iter().map(|layer| weights.share(layer, &keys, applied(layer))).sum();
    let image_bytes = image.map_or(0, |image| image.desc().file_size);
    let image_effort = image.map_or(0, |image| effort(image));
    Cell {
        keys,
        image_bytes,
        image_effort,
        delta_bytes,
        applied,
        image: image.map(|image| image.identity().file_id),
        is_damaged,
    }
}

/// What an image layer costs to make, in bytes: those of its file, or a part of its pages' where these compress well.
/// All of them are read, rebuilt and compressed, however little is written in the end.
fn effort(image: &Layer) -> u64 {
    let size = image.desc().file_size;
    let full = u64::from(index_pages(image.identity(), size)).saturating_sub(1);
    size.max(full * IMAGES_PER_INDEX_PAGE * PAGE_BYTES / IMAGE_EFFORT)
}

/// The bytes of changes in a delta layer that reads may have to apply.
fn applied(layer: &Layer) -> u64 {
    let size = layer.desc().file_size;
    match u64::from(index_pages(layer.identity(), size)) {
        0 => size,
        pages => size.min(pages * CHANGES_PER_INDEX_PAGE * APPLIED_MAX),
    }
}

/// The keys of which images are due: those of the cell with the most changes for its size, and of its neighbors, as far
/// as they are due too.
pub(crate) fn image(stacks: &[Stack], weights: &Weights, known: &Known, policy: &CompactionPolicy) -> Option<Due> {
    let cells = cells(stacks, weights, known);
    let is_due = |cell: &Cell| cell.is_due(policy, known);
    let ratio = |cell: &Cell| cell.delta_bytes as f64 / cell.image_effort.max(1) as f64;
    let due = || cells.iter().enumerate().filter(|(_, cell)| is_due(cell));
    let (at, first) = due().max_by(|(_, one), (_, other)| ratio(one).total_cmp(&ratio(other)))?;
    let sum = |bytes: &dyn Fn(&Cell) -> u64| due().map(|(_, cell)| bytes(cell)).sum::<u64>();
    let images = ImagesDue {
        changes: sum(&|cell| cell.delta_bytes),
        applied: sum(&|cell| cell.applied),
        enough: sum(&|cell| cell.enough(policy)),
        enough_for_all: cells.iter().map(|cell| cell.enough(policy)).sum(),
        bytes: sum(&Cell::bytes),
    };
    let urgency = Urgency::of_images(images, policy);
    let (keys, bytes) = extended(first, cells.get(at + 1..).unwrap_or_default(), is_due, policy);
    Some(Due { keys, bytes, urgency })
}

/// The keys of a cell, and of those `next` to it that are due too, as far as one job goes, and their bytes.
fn extended(
    first: &Cell,
    next: &[Cell],
    is_due: impl Fn(&Cell) -> bool,
    policy: &CompactionPolicy,
) -> (Range<Key>, u64) {
    let mut keys = first.keys.clone();
    let mut bytes = first.image_bytes + first.delta_bytes;
    for next in next {
        let more = next.image_bytes + next.delta_bytes;
        if next.keys.start != keys.end || !is_due(next) || bytes + more > policy.job_bytes {
            break;
        }
        keys.end = next.keys.end;
        bytes += more;
    }
    // A job ends where it has written that much.
    (keys, bytes.min(policy.job_bytes_max))
}

/// What lies at and below a cutoff.
pub(crate) struct Below {
    /// The layers that reads as of the cutoff may visit, by key.
    pub(crate) stacks: Vec<Stack>,
    pub(crate) cutoff: Lsn,
    /// Files that are kept for other LSNs, whatever is made at the cutoff.
    pub(crate) pinned: HashSet<u64>,
    /// Bytes of the layers above the cutoff.
    pub(crate) history: u64,
}

impl Below {
    pub(crate) fn of(map: &LayerMap, retention: &Retention) -> Self {
        let cutoff = retention.cutoff;
        let mut pinned = Marked::new();
        for lsn in &retention.retained {
            mark(map, &KeySpace::single(Key::MIN..Key::MAX), *lsn + 1, &mut pinned);
        }
        let above = map.iter().filter(|layer| layer.desc().is_delta && layer.desc().lsn_range.end > cutoff + 1);
        Self {
            stacks: stacks(map.iter().filter(|layer| layer.desc().lsn_range.start <= cutoff)),
            cutoff,
            pinned: pinned.into_keys().collect(),
            history: above.map(|layer| layer.desc().file_size).sum(),
        }
    }
}

/// The keys of which images at the cutoff are due. Where the versions between the image that a read as of the cutoff
/// ends at and the cutoff take much room, compared with what has to be kept, an image at the cutoff replaces them all.
/// Those keys come first where that gives back most for each byte that it takes.
pub(crate) fn fold(below: &Below, weights: &Weights, known: &Known, policy: &CompactionPolicy) -> Option<Due> {
    let goes = |layer: &Arc<Layer>| {
        layer.desc().lsn_range.end <= below.cutoff + 1 && !below.pinned.contains(&layer.identity().file_id)
    };
    let with_garbage = |stack: &Stack| {
        let deltas = stack.deltas.iter().filter(|layer| goes(layer)).cloned().collect();
        Stack { deltas, ..stack.clone() }
    };
    let cells = cells(&below.stacks.iter().map(with_garbage).collect::<Vec<_>>(), weights, known);
    let garbage: u64 = cells.iter().map(|cell| cell.delta_bytes).sum();
    let needed = below.history + cells.iter().map(|cell| cell.image_bytes).sum::<u64>();
    if garbage.saturating_mul(100) < needed.saturating_mul(policy.fold_percent) {
        return None;
    }
    let ratio = |cell: &Cell| cell.delta_bytes as f64 / cell.image_bytes.max(1) as f64;
    let gains = |cell: &Cell| {
        cell.delta_bytes >= (cell.image_bytes / FOLD_GAIN).max(policy.file_bytes / SMALLEST_IMAGES)
            && known.can_image(cell)
    };
    let due = cells.iter().enumerate().filter(|(_, cell)| gains(cell));
    let (at, first) = due.max_by(|(_, one), (_, other)| ratio(one).total_cmp(&ratio(other)))?;
    let urgency = Urgency::of_folds(garbage, needed, policy);
    let (keys, bytes) = extended(first, cells.get(at + 1..).unwrap_or_default(), gains, policy);
    Some(Due { keys, bytes, urgency })
}

/// The cheapest merge that makes one of the tallest stacks lower, if any is too tall.
pub(crate) fn merge(map: &LayerMap, stacks: &[Stack], known: &Known, policy: &CompactionPolicy) -> Option<Job> {
    let mut tall: Vec<&Stack> = stacks.iter().filter(|stack| stack.height() > policy.height).collect();
    if tall.is_empty() {
        return None;
    }
    tall.sort_by_key(|stack| std::cmp::Reverse(stack.height()));
    let deltas: Vec<&Arc<Layer>> = map.iter().filter(|layer| layer.desc().is_delta && !layer.desc().is_l0()).collect();
    let best = |limit: u64| {
        let candidates = tall.iter().take(STACKS_TRIED).flat_map(|stack| {
            MERGED.flat_map(|count| stack.deltas.windows(count)).filter_map(|window| closed(window, &deltas, limit))
        });
        let candidates = candidates.filter(|merge| !merge.layers.iter().any(|layer| known.is_damaged(layer)));
        candidates.min_by(|one, other| one.cost().total_cmp(&other.cost()))
    };
    // The bound on height counts more than that on a job, whose memory does not depend on its bytes.
    let merge = best(policy.job_bytes)
        .or_else(|| best(policy.job_bytes_max.min(LARGER_MERGE.saturating_mul(policy.job_bytes))))
        .or_else(|| best(policy.job_bytes_max))?;
    Some(Job::Merge(merge.layers))
}

/// Delta layers that can be replaced by others that cover the smallest rectangle of keys and LSNs around them.
struct Merge {
    layers: Vec<Arc<Layer>>,
    bytes: u64,
    /// Layers of the stack for which it is made.
    lowers: usize,
}

impl Merge {
    /// Bytes for each layer that the stack becomes lower.
    fn cost(&self) -> f64 {
        self.bytes as f64 / (self.lowers - 1).max(1) as f64
    }
}

/// The layers of `window` with all others that overlap the rectangle around them; `None` if they have more than `limit`
/// bytes.
fn closed(window: &[Arc<Layer>], deltas: &[&Arc<Layer>], limit: u64) -> Option<Merge> {
    let first = window.first()?.desc();
    let (mut keys, mut lsns) = (first.key_range.clone(), first.lsn_range.clone());
    let extend = |keys: &mut Range<Key>, lsns: &mut Range<Lsn>, layer: &Layer| {
        let desc = layer.desc();
        *keys = keys.start.min(desc.key_range.start)..keys.end.max(desc.key_range.end);
        *lsns = lsns.start.min(desc.lsn_range.start)..lsns.end.max(desc.lsn_range.end);
    };
    window.iter().for_each(|layer| extend(&mut keys, &mut lsns, layer));
    loop {
        let overlaps = |layer: &&&Arc<Layer>| {
            let desc = layer.desc();
            desc.key_range.start < keys.end
                && keys.start < desc.key_range.end
                && desc.lsn_range.start < lsns.end
                && lsns.start < desc.lsn_range.end
        };
        let layers: Vec<Arc<Layer>> = deltas.iter().filter(overlaps).map(|layer| Arc::clone(layer)).collect();
        let bytes = layers.iter().map(|layer| layer.desc().file_size).sum();
        if bytes > limit {
            return None;
        }
        let (old_keys, old_lsns) = (keys.clone(), lsns.clone());
        layers.iter().for_each(|layer| extend(&mut keys, &mut lsns, layer));
        if (&keys, &lsns) == (&old_keys, &old_lsns) {
            return Some(Merge { layers, bytes, lowers: window.len() });
        }
    }
}

#[cfg(test)]
mod tests;
