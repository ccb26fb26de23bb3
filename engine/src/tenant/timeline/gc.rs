//! Removes history that nothing keeps: marks the layers that reads still allowed may visit, with the search that reads
//! use, and removes the others.
//!
//! What is kept: everything above the cutoff of each timeline, and below it single LSNs: where other timelines branch
//! off, and those that leases, holds and reads in progress are about. First no read below the new cutoff begins any
//! more, in memory; then a manifest without the layers is stored; then the layers go, once nobody reads them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use parking_lot::MutexGuard;
use serde::Serialize;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::keeping::{Keeper, Keeping};
use super::live;
use super::manifest::Ancestor;
use super::publish;
use super::retention::Retention;
use super::state::TimelineState;
use super::thinning;
use super::work::{LastLook, Pinned};
use crate::tenant::layer_map::mark::{Marked, mark};
use crate::tenant::layer_map::{Layer, LayerMap};
use errors::StorageError;
use metrics::METRICS;

/// An LSN that is kept, and what for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// The LSN.
    pub lsn: Lsn,
    /// What keeps it: the cutoff, a branch, a lease, a hold, a read.
    pub why: String,
    /// Number of layers that are there for this LSN alone.
    pub layers: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// What was, or would be, removed of a timeline.
#[derive(Clone, Debug, Serialize)]
pub struct GcReport {
    /// The timeline.
    pub timeline_id: TimelineId,
    /// The cutoff before.
    pub old_cutoff: Lsn,
    /// Below this LSN only `points` are kept.
    pub cutoff: Lsn,
    /// What keeps the cutoff from being later.
    pub bound_by: String,
    /// What is kept below the cutoff, and at it.
    pub points: Vec<Point>,
    /// Layers removed.
    pub removed_layers: usize,
    /// Their bytes.
    pub removed_bytes: u64,
    /// Layers that stay.
    pub kept_layers: usize,
    /// Their bytes.
    pub kept_bytes: u64,
}

/// What keeps a cutoff from being later if L0 layers do.
const UNSORTED: &str = "what is sorted";

/// LSNs by timeline, and what they are kept for.
type Points = BTreeMap<TimelineId, BTreeMap<Lsn, Vec<String>>>;

/// What is to be done about one timeline.
struct Plan {
    state: Arc<TimelineState>,
    removed: Vec<Arc<Layer>>,
    /// Images at which reads of what is kept end: what lies below them goes.
    bases: Vec<Arc<Layer>>,
    /// Files that LSNs below the cutoff need.
    needed: HashSet<u64>,
    report: GcReport,
}

/// Removes, from `states`, all timelines of one tenant, what nothing keeps. With `dry_run` only says what that would
/// be.
pub(super) async fn collect(
    states: &[Arc<TimelineState>],
    now: SystemTime,
    dry_run: bool,
) -> Result<Vec<GcReport>, StorageError> {
    let mut reports = Vec::new();
    for Plan { state, removed, bases, needed, mut report } in plan(states, now, dry_run) {
        let _guard = state.enter()?;
        let is_news = report.cutoff > report.old_cutoff || !removed.is_empty();
        if !dry_run && report.bound_by == UNSORTED {
            state.compaction.sort_all.store(true, Ordering::Relaxed);
        }
        if !dry_run && is_news {
            state.check_writable()?;
            if publish::trimmed(&state, &removed, &bases).await? {
                METRICS.gc_removed_layers.inc_by(report.removed_layers as u64);
                METRICS.gc_removed_bytes.inc_by(report.removed_bytes);
                if !removed.is_empty() {
                    tracing::info!(
                        timeline = %state.timeline_id,
                        "removed {} layers of history below LSN {}", report.removed_layers, report.cutoff
                    );
                }
            } else {
                // Compaction has replaced one of them meanwhile, or removed what the rest needs: the next time finds
                // what is there then.
                (report.removed_layers, report.removed_bytes) = (0, 0);
            }
        }
        state.work.note_look(looked(&report, needed), !dry_run && report.removed_layers > 0);
        reports.push(report);
    }
    Ok(reports)
}

/// What is to be remembered of a look for history that nothing keeps.
fn looked(report: &GcReport, needed: HashSet<u64>) -> LastLook {
    let point =
        |point: &Point| Pinned { lsn: point.lsn, why: point.why.clone(), layers: point.layers, bytes: point.bytes };
    let points = report.points.iter().map(point).collect();
    LastLook { at: env::clock::now(), cutoff: report.cutoff, bound_by: report.bound_by.clone(), points, needed }
}

/// Where the cutoff would be if history were removed now.
pub(super) fn cutoff_now(state: &TimelineState) -> Lsn {
    cutoff_of(state, &state.keeping.lock(), env::clock::steady_now()).0
}

/// Finds out which keys are in use at the LSNs that [`collect`] would keep now: it takes others for in use at those
/// that come between.
pub(super) async fn prepare(states: &[Arc<TimelineState>], now: SystemTime) -> Result<(), StorageError> {
    let mut wanted = points_below(states, &lock_all(states), now);
    for state in states {
        let cutoff = {
            let keeping = state.keeping.lock();
            cutoff_of(state, &keeping, now).0
        };
        let lsns = wanted.remove(&state.timeline_id).unwrap_or_default().into_keys().chain([cutoff]);
        live::learn(state, lsns.collect()).await?;
    }
    Ok(())
}

/// Whoever makes something readable longer waits while these are held.
fn lock_all(states: &[Arc<TimelineState>]) -> Vec<MutexGuard<'_, Keeping>> {
    states.iter().map(|state| state.keeping.lock()).collect()
}

/// By the timelines in whose own history they are: what is to be kept even below the cutoff, and what for.
fn points_below(states: &[Arc<TimelineState>], keeping: &[MutexGuard<'_, Keeping>], now: SystemTime) -> Points {
    let mut points = Points::new();
    for (state, keeping) in states.iter().zip(keeping) {
        if let Some(Ancestor { timeline_id, lsn }) = state.needs()
            && let Some(ancestor) = states.iter().find(|other| other.timeline_id == timeline_id)
            && !fault::planted(fault::Bug::ForgetBranchPoint)
        {
            let why = format!("branch {}", state.timeline_id);
            points.entry(owner_of(ancestor, lsn)).or_default().entry(lsn).or_default().push(why);
        }
        if fault::planted(fault::Bug::ForgetLease) {
            continue;
        }
        for (lsn, keeper) in keeping.points(now) {
            let why = match keeper {
                Keeper::Lease => "lease".to_owned(),
                Keeper::Hold(name) => format!("hold {name:?}"),
                Keeper::Read => "read in progress".to_owned(),
            };
            points.entry(owner_of(state, lsn)).or_default().entry(lsn).or_default().push(why);
        }
    }
    points
}

/// Decides what goes, and ends reads of it, unless it is a `dry_run`.
fn plan(states: &[Arc<TimelineState>], now: SystemTime, dry_run: bool) -> Vec<Plan> {
    let keeping = lock_all(states);
    let mut points = points_below(states, &keeping, now);
    let mut plans = Vec::new();
    for (state, keeping) in states.iter().zip(&keeping) {
        let own = points.remove(&state.timeline_id).unwrap_or_default();
        plans.push(plan_one(state, cutoff_of(state, keeping, now), own, dry_run));
    }
    plans
}

/// The timeline whose own history `lsn` of `state` is in.
fn owner_of(state: &TimelineState, lsn: Lsn) -> TimelineId {
    match state.ancestor() {
        _ if fault::planted(fault::Bug::ForgetGrandparent) => state.timeline_id,
        Some(ancestor) if lsn <= ancestor.lsn => owner_of(&ancestor.state, lsn),
        _ => state.timeline_id,
    }
}

/// Below which LSN nothing but single points is kept, and why it is not higher.
pub(super) fn cutoff_of(state: &TimelineState, keeping: &Keeping, now: SystemTime) -> (Lsn, &'static str) {
    let window = keeping.window(now, state.record_lsn().last, &state.conf.retention);
    let durable = (state.disk_consistent().last, "what is on disk");
    // Reads of it must not need L0 layers: compaction reads at the end of what is sorted.
    let sorted_to = state.layers().map.sorted_to().map_or(state.origin.import_lsn, |end| end - 1);
    let old = state.retention.read().cutoff;
    // Up to there it was sorted once, however little of that is left.
    let sorted = (sorted_to.max(old), UNSORTED);
    let all = [window, durable, sorted];
    let (lsn, why) = all.into_iter().min_by_key(|(lsn, _)| *lsn).unwrap_or_default();
    // Not before its own history begins: it would only refuse what the ancestor has.
    let begins = state.origin.import_lsn;
    if fault::planted(fault::Bug::CutoffGoesBack) && lsn > begins {
        return (lsn, why);
    }
    if lsn <= begins.max(old) { (old, why) } else { (lsn, why) }
}

/// Images within the history that are to go, of those that are not needed once `removed` is gone.
fn thinned(state: &TimelineState, map: &LayerMap, removed: &[&Arc<Layer>], cutoff: Lsn) -> Vec<Arc<Layer>> {
    let removed: Vec<Arc<Layer>> = removed.iter().map(|layer| Arc::clone(layer)).collect();
    let map = map.replaced(&removed, Vec::new());
    map.map_or_else(|_| Vec::new(), |map| thinning::superfluous(state, &map, cutoff))
}

/// For each of the `points` the layers that a read as of it may visit.
fn marks(state: &TimelineState, map: &LayerMap, points: &BTreeMap<Lsn, Vec<String>>) -> Vec<(Lsn, String, Marked)> {
    let marks = points.iter().map(|(lsn, why)| {
        let mut marked = Marked::new();
        mark(map, &KeySpace::single(Key::MIN..Key::MAX), *lsn + 1, &mut marked);
        if let Some(live) = state.live.lock().at.get(lsn) {
            // Nobody asks for the others any more.
            marked.retain(|_, layer| live.overlaps(&layer.desc().key_range));
        }
        (*lsn, why.join(", "), marked)
    });
    marks.collect()
}

fn plan_one(
    state: &Arc<TimelineState>,
    (cutoff, bound_by): (Lsn, &'static str),
    mut points: BTreeMap<Lsn, Vec<String>>,
    dry_run: bool,
) -> Plan {
    let old = state.retention.read().clone();
    points.retain(|lsn, why| {
        let is_readable = old.check(*lsn).is_ok();
        if !is_readable {
            tracing::warn!(timeline = %state.timeline_id, %lsn, "no longer readable, and wanted by {why:?}");
        }
        is_readable && *lsn < cutoff
    });
    if cutoff > Lsn::INVALID && !fault::planted(fault::Bug::ForgetCutoff) {
        points.entry(cutoff).or_default().push("cutoff".to_owned());
    }
    let map = state.layers().map.clone();
    let marks = marks(state, &map, &points);
    let mut kept_by: BTreeMap<u64, usize> = BTreeMap::new();
    marks.iter().flat_map(|(.., marked)| marked.keys()).for_each(|id| *kept_by.entry(*id).or_default() += 1);
    let below = marks.iter().filter(|(lsn, ..)| *lsn < cutoff);
    let needed = below.flat_map(|(.., marked)| marked.keys().copied()).collect();
    let is_needed = |layer: &&Arc<Layer>| {
        // What ends above the cutoff may be read as of any LSN above it.
        layer.desc().lsn_range.end > cutoff + 1 || kept_by.contains_key(&layer.identity().file_id)
    };
    let (kept, mut removed): (Vec<_>, Vec<_>) = map.iter().partition(is_needed);
    let marked = marks.iter().flat_map(|(.., marked)| marked.values());
    let bases = marked.filter(|layer| !layer.desc().is_delta).cloned().collect();
    let thinned = thinned(state, &map, &removed, cutoff);
    removed.extend(&thinned);
    let is_thinned = |layer: &&Arc<Layer>| thinned.iter().any(|it| Arc::ptr_eq(it, layer));
    let kept: Vec<_> = kept.into_iter().filter(|layer| !is_thinned(layer)).collect();
    let bytes = |layers: &[&Arc<Layer>]| layers.iter().map(|layer| layer.desc().file_size).sum();
    let point = |(lsn, why, marked): (Lsn, String, Marked)| {
        let is_alone = |layer: &&Arc<Layer>| {
            kept_by.get(&layer.identity().file_id) == Some(&1) && layer.desc().lsn_range.end <= cutoff + 1
        };
        let alone: Vec<&Arc<Layer>> = marked.values().filter(is_alone).collect();
        Point { lsn, why, layers: alone.len(), bytes: bytes(&alone) }
    };
    let report = GcReport {
        timeline_id: state.timeline_id,
        old_cutoff: old.cutoff,
        cutoff,
        bound_by: bound_by.to_owned(),
        points: marks.into_iter().map(point).collect(),
        removed_layers: removed.len(),
        removed_bytes: bytes(&removed),
        kept_layers: kept.len(),
        kept_bytes: bytes(&kept),
    };
    if !dry_run {
        let retained = points.into_keys().filter(|lsn| *lsn < cutoff).collect();
        *state.retention.write() = Retention { cutoff, retained };
    }
    let removed = removed.into_iter().cloned().collect();
    Plan { state: Arc::clone(state), removed, bases, needed, report }
}
