//! Trims delta layers below the cutoff that only single LSNs keep: branch points, leases and holds. Of each page only
//! the versions stay that a read as of one of them applies.
//!
//! Such a layer lies below images at which all reads at and above the cutoff end. These images go only when no read
//! that is allowed visits them, so none will ever come to the layer from above again; and LSNs below the cutoff are
//! never added to those that are kept. So what is not needed once is never needed. It is checked again all the same
//! before the layer is replaced.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::{CompactKey, Key};
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::outputs::{Cuts, Done, Finished, Outputs};
use super::plan::{Job, Known, SMALLEST_IMAGES, Trim};
use super::rewrite::{around, copy_some, publish_or_abandon};
use crate::context::RequestContext;
use crate::disk_budget::Hold;
use crate::tenant::layer_map::mark::{Marked, Takes, mark, visit};
use crate::tenant::layer_map::{Layer, LayerMap};
use crate::tenant::storage_layer::VersionStream;
use crate::tenant::timeline::debt::Untrimmed;
use crate::tenant::timeline::retention::Retention;
use crate::tenant::timeline::state::TimelineState;
use errors::StorageError;

/// A layer is trimmed if less than this percentage of the bytes of its values is needed.
const NEEDED_PERCENT: u64 = 50;

/// A layer that only single LSNs keep.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) layer: Arc<Layer>,
    /// In order of the first key.
    pub(crate) takes: Takes,
}

/// The layers that only LSNs below the cutoff keep.
pub(crate) fn kept_for_points(map: &LayerMap, retention: &Retention) -> Vec<Kept> {
    let all = KeySpace::single(Key::MIN..Key::MAX);
    let Retention { cutoff, retained } = retention;
    let mut from_above = Marked::new();
    mark(map, &all, *cutoff + 1, &mut from_above);
    let mut kept: BTreeMap<u64, Kept> = BTreeMap::new();
    let forgotten = usize::from(fault::planted(fault::Bug::TrimForgetsLsn));
    for lsn in retained.iter().skip(forgotten) {
        visit(map, &all, *lsn + 1, |visit| {
            let (id, desc) = (visit.layer.identity().file_id, visit.layer.desc());
            let is_below = desc.is_delta && !desc.is_l0() && desc.lsn_range.end <= *cutoff + 1;
            if is_below && !from_above.contains_key(&id) {
                let kept = kept.entry(id).or_insert_with(|| Kept { layer: visit.layer, takes: Takes::new() });
                kept.takes.push((visit.keys, visit.lsns));
            }
        });
    }
    let mut kept: Vec<Kept> = kept.into_values().collect();
    for Kept { takes, .. } in &mut kept {
        takes.sort_unstable_by_key(|(keys, lsns)| (keys.start, keys.end, lsns.start, lsns.end));
        takes.dedup();
    }
    kept
}

/// A layer of which little is needed, if there is one. Remembers those of which much is.
pub(super) async fn next(
    state: &TimelineState,
    map: &LayerMap,
    known: &Known,
    ctx: &RequestContext,
) -> Result<Option<Job>, StorageError> {
    let retention = state.retention.read().clone();
    // What lies below the cutoff changes only with it, or when it is trimmed.
    if retention.retained.is_empty() || state.compaction.untrimmed.lock().at == retention {
        return Ok(None);
    }
    let least = state.compaction_policy().file_bytes / SMALLEST_IMAGES;
    let kept = kept_for_points(map, &retention);
    let mut looked_at = std::mem::take(&mut state.compaction.untrimmed.lock().layers);
    looked_at.retain(|id, takes| {
        kept.iter().any(|Kept { layer, takes: now }| layer.identity().file_id == *id && now == takes)
    });
    let mut found = None;
    for kept in kept {
        let id = kept.layer.identity().file_id;
        if looked_at.contains_key(&id) || known.damaged.contains(&id) || kept.layer.desc().file_size < least {
            continue;
        }
        let needed = Needed::of(&kept, ctx).await?;
        if needed.is_little(least) {
            let bytes = needed.bytes;
            found = Some(Trim { layer: kept.layer, takes: kept.takes, needed: Arc::new(needed.versions), bytes });
            break;
        }
        looked_at.insert(id, kept.takes);
    }
    let at = if found.is_none() { retention } else { Retention::default() };
    *state.compaction.untrimmed.lock() = Untrimmed { at, layers: looked_at };
    Ok(found.map(Job::Trim))
}

/// Which versions of a layer are needed.
#[derive(Debug, Default)]
struct Needed {
    versions: Vec<bool>,
    /// Bytes of their values,
    bytes: u64,
    /// and of all.
    all: u64,
}

impl Needed {
    async fn of(kept: &Kept, ctx: &RequestContext) -> Result<Self, StorageError> {
        let mut needed = Self::default();
        let mut cursor = kept.layer.cursor(&kept.layer.desc().key_range, ctx).await?;
        let (mut takes, mut page) = (Sweep::new(&kept.takes), Page::default());
        loop {
            cursor.fill().await?;
            let entry = cursor.peek().copied();
            if page.key.is_some() && page.key != entry.map(|entry| entry.key) {
                needed.add(&mut page, &mut takes);
            }
            let Some(entry) = entry else { return Ok(needed) };
            page.key = Some(entry.key);
            page.versions.push((entry.lsn, entry.flag, entry.len));
            cursor.advance();
        }
    }

    /// Adds all versions of a page.
    fn add(&mut self, page: &mut Page, takes: &mut Sweep<'_>) {
        let Some(key) = page.key.take() else { return };
        let flags = page.needed(takes.at(Key::from_compact(key)));
        for ((.., len), is_needed) in page.versions.drain(..).zip(&flags) {
            self.all += u64::from(len);
            self.bytes += if *is_needed { u64::from(len) } else { 0 };
        }
        self.versions.extend(flags);
    }

    /// Whether so little is needed that the rest, `least` bytes at the least, is worth a job. Not if nothing is: then
    /// the layer goes with the LSNs that keep it.
    fn is_little(&self, least: u64) -> bool {
        let is_little = self.bytes.saturating_mul(100) < self.all.saturating_mul(NEEDED_PERCENT);
        is_little && self.all - self.bytes >= least && self.bytes > 0
    }
}

/// The versions of a page in a layer, oldest first: LSN, whether it needs no earlier one, bytes.
#[derive(Debug, Default)]
struct Page {
    key: Option<CompactKey>,
    versions: Vec<(Lsn, bool, u32)>,
}

impl Page {
    /// Which versions reads apply that take those with these LSNs: the newest, and all before it down to one that needs
    /// no earlier one.
    fn needed<'a>(&self, takes: impl Iterator<Item = &'a Range<Lsn>>) -> Vec<bool> {
        let mut needed = vec![false; self.versions.len()];
        for lsns in takes {
            for ((lsn, is_whole, _), needed) in self.versions.iter().zip(&mut needed).rev() {
                if lsns.contains(lsn) {
                    *needed = true;
                    if *is_whole {
                        break;
                    }
                }
            }
        }
        needed
    }
}

/// Goes over what is taken, in order of keys.
struct Sweep<'a> {
    later: &'a [(Range<Key>, Range<Lsn>)],
    now: Vec<&'a (Range<Key>, Range<Lsn>)>,
}

impl<'a> Sweep<'a> {
    fn new(takes: &'a Takes) -> Self {
        Self { later: takes, now: Vec::new() }
    }

    /// The LSNs that are taken of `key`, which must not go back.
    fn at(&mut self, key: Key) -> impl Iterator<Item = &'a Range<Lsn>> {
        let (begun, later) = self.later.split_at(self.later.partition_point(|(keys, _)| keys.start <= key));
        self.later = later;
        self.now.extend(begun);
        self.now.retain(|(keys, _)| key < keys.end);
        self.now.iter().map(|(_, lsns)| lsns)
    }
}

/// Replaces a layer by one with the versions that are needed.
pub(super) async fn trim(
    state: &TimelineState,
    trim: &Trim,
    room: &Hold,
    ctx: &RequestContext,
) -> Result<Done, StorageError> {
    let finished = write(state, trim, room, ctx).await?;
    let (bytes_in, bytes_out) = (trim.layer.desc().file_size, finished.bytes());
    let is_as_before = || {
        let retention = state.retention.read().clone();
        let kept = kept_for_points(&state.layers().map, &retention);
        kept.iter().any(|kept| Arc::ptr_eq(&kept.layer, &trim.layer) && kept.takes == trim.takes)
    };
    let inputs = std::slice::from_ref(&trim.layer);
    let published = publish_or_abandon(state, inputs, finished, room, is_as_before).await?;
    Ok(Done { bytes_in, bytes_out, published })
}

async fn write(
    state: &TimelineState,
    trim: &Trim,
    room: &Hold,
    ctx: &RequestContext,
) -> Result<Finished, StorageError> {
    let (keys, lsns) = around(std::slice::from_ref(&trim.layer));
    let cursor = trim.layer.cursor(&keys, ctx).await?;
    let stream = VersionStream::new(vec![cursor], state.conf.compaction.memory);
    // It becomes smaller: one file is enough.
    let mut outputs = Outputs::new(state, keys, lsns, Cuts::new(Vec::new(), u64::MAX), room, ctx);
    let copied = copy_some(state, stream, &trim.needed, &mut outputs).await;
    outputs.finish(copied).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> Key {
        Key { field6: n, ..Key::MIN }
    }

    fn page(versions: &[(u64, bool)]) -> Page {
        Page { key: None, versions: versions.iter().map(|(lsn, is_whole)| (Lsn(*lsn), *is_whole, 1)).collect() }
    }

    #[test]
    fn what_reads_apply_is_needed() {
        let page = page(&[(10, false), (20, true), (30, false), (40, false), (50, true), (60, false)]);
        let needed = |takes: &[(u64, u64)]| -> Vec<u64> {
            let takes: Vec<Range<Lsn>> = takes.iter().map(|(start, end)| Lsn(*start)..Lsn(*end)).collect();
            let flags = page.needed(takes.iter());
            page.versions.iter().zip(flags).filter(|(_, needed)| *needed).map(|((lsn, ..), _)| lsn.0).collect()
        };
        assert_eq!(needed(&[]), [0; 0]);
        assert_eq!(needed(&[(5, 11)]), [10]);
        assert_eq!(needed(&[(5, 41)]), [20, 30, 40]);
        assert_eq!(needed(&[(5, 40)]), [20, 30]);
        assert_eq!(needed(&[(25, 46)]), [30, 40], "an image below the layer's first versions ends the read");
        assert_eq!(needed(&[(5, 61), (5, 15)]), [10, 50, 60]);
    }

    #[test]
    fn of_each_key_what_is_taken_of_it_is_found() {
        let lsns = |n: u64| Lsn(0)..Lsn(n);
        let takes = vec![(key(0)..key(10), lsns(1)), (key(0)..key(20), lsns(2)), (key(15)..key(30), lsns(3))];
        let mut sweep = Sweep::new(&takes);
        let mut found = |n: u32| -> Vec<u64> { sweep.at(key(n)).map(|lsns| lsns.end.0).collect() };
        assert_eq!(found(3), [1, 2]);
        assert_eq!(found(9), [1, 2]);
        assert_eq!(found(10), [2]);
        assert_eq!(found(16), [2, 3]);
        assert_eq!(found(25), [3]);
        assert_eq!(found(30), [0; 0]);
    }

    #[test]
    fn a_layer_is_trimmed_where_that_gives_much_back() {
        let little = |bytes, all| Needed { versions: Vec::new(), bytes, all }.is_little(100);
        assert!(little(400, 1000) && !little(500, 1000) && !little(0, 1000));
        assert!(!little(40, 120), "less than is worth a job");
    }
}
