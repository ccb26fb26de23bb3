//! Detaches a branch from its ancestor, so that the ancestor can go.
//!
//! First [`inherited`] makes what the branch inherits its own, which takes long and changes nothing for anybody. Then
//! one manifest says that the ancestor is not needed any more, and that nothing below the branch point is readable.
//! Once every later owner will know that, reads stop going to the ancestor, which may go from then on.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::MutexGuard;
use utils::lsn::Lsn;

use super::compact::inherited;
use super::keeping::{Keeper, Keeping};
use super::publish;
use super::state::{Branching, TimelineState};
use errors::StorageError;

/// How long a request waits for the bucket.
const CONFIRMATION: Duration = Duration::from_secs(60);
/// What needs the ancestor, as far as it is named.
const NAMED: usize = 5;

/// Makes what the branch inherits its own. Does nothing for a timeline that has no ancestor.
///
/// # Errors
/// That of the first page that could not be read; those of disk and bucket. What is done stays.
pub(super) async fn prepare(state: &TimelineState) -> Result<(), StorageError> {
    let _worker = state.detaching.worker.lock().await;
    let Some(branching) = state.ancestor().filter(|_| !state.is_detached()) else { return Ok(()) };
    state.detaching.note(|_| {});
    let made = inherited::make_all(state, &branching).await;
    state.detaching.end();
    made
}

/// Fails if something that does not end by itself needs what is below the branch point: then [`prepare`] would be in
/// vain.
pub(super) fn check(
    state: &Arc<TimelineState>,
    all: &[Arc<TimelineState>],
    now: SystemTime,
) -> Result<(), StorageError> {
    let Some(branching) = state.ancestor().filter(|_| !state.is_detached()) else { return Ok(()) };
    let is_lasting = |keeper: &Keeper| matches!(keeper, Keeper::Hold(_));
    unless_needed(state, &branching, &lock_all(all), |keeping| {
        keeping.points(now).into_iter().filter(|(_, keeper)| is_lasting(keeper)).collect()
    })
}

/// Decides that the ancestor is not needed any more, durably. False if something of it still is that [`prepare`] makes
/// the branch's own. `all` must be all timelines of the tenant, and none may be made or closed meanwhile.
///
/// # Errors
/// [`StorageError::Invalid`] if somebody needs what is below the branch point; those of storing the decision.
pub(super) async fn decide(
    state: &Arc<TimelineState>,
    all: &[Arc<TimelineState>],
    now: SystemTime,
) -> Result<bool, StorageError> {
    let Some(branching) = state.ancestor().filter(|_| !state.is_detached()) else { return Ok(true) };
    if !inherited::missing(state, branching.lsn).is_empty() {
        return Ok(false);
    }
    publish::detached(state, &branching, || close_below(state, &branching, all, now)).await?;
    tracing::info!(
        timeline = %state.timeline_id, ancestor = %branching.state.timeline_id,
        "detached from its ancestor: history begins at LSN {}", branching.lsn
    );
    Ok(true)
}

/// Waits until every later owner will know of the decision, then ends reads of the ancestor.
///
/// # Errors
/// One that says that it takes longer: it goes on, and may be waited for again.
pub(super) async fn complete(state: &TimelineState) -> Result<(), StorageError> {
    if let Some(uploader) = &state.uploader {
        match env::clock::timeout(CONFIRMATION, uploader.until_detached()).await {
            Ok(true) => {}
            Ok(false) => return Err(not_confirmed(state, "nothing more is uploaded")),
            Err(_) => return Err(not_confirmed(state, "it is not in the bucket yet")),
        }
    }
    settle(state);
    Ok(())
}

fn not_confirmed(state: &TimelineState, why: &str) -> StorageError {
    if let Some(Err(fenced)) = state.uploader.as_ref().map(|uploader| uploader.remote().check_known()) {
        return fenced;
    }
    let why = state.uploader.as_ref().and_then(|uploader| uploader.status().last_error).unwrap_or(why.to_owned());
    StorageError::NoRoom(format!(
        "timeline {} is detached, but its ancestor stays until that is known in the bucket: {why}",
        state.timeline_id
    ))
}

/// Ends reads of the ancestor if it is not needed any more. Cheap.
pub(super) fn settle(state: &TimelineState) {
    let is_known = state.uploader.as_ref().is_none_or(|uploader| uploader.knows_detached());
    if state.is_detached() && is_known && state.ancestor().is_some() {
        state.forget_ancestor();
    }
}

/// From now on nothing below the branch point is promised to anybody, unless somebody needs it already.
fn close_below(
    state: &Arc<TimelineState>,
    branching: &Branching,
    all: &[Arc<TimelineState>],
    now: SystemTime,
) -> Result<(), StorageError> {
    // Whoever makes something readable longer waits while these are held.
    let keeping = lock_all(all);
    unless_needed(state, branching, &keeping, |keeping| keeping.points(now))?;
    state.set_detached(true);
    Ok(())
}

fn lock_all(all: &[Arc<TimelineState>]) -> Vec<(&Arc<TimelineState>, MutexGuard<'_, Keeping>)> {
    all.iter().map(|state| (state, state.keeping.lock())).collect()
}

/// Fails if somebody needs what is below the branch point. `points` are what keeps LSNs of a timeline.
fn unless_needed(
    state: &Arc<TimelineState>,
    branching: &Branching,
    keeping: &[(&Arc<TimelineState>, MutexGuard<'_, Keeping>)],
    points: impl Fn(&Keeping) -> Vec<(Lsn, Keeper)>,
) -> Result<(), StorageError> {
    let mut needed = Vec::new();
    for (other, keeping) in keeping {
        if let Some(point) = other.ancestor().filter(|point| reaches_below(&point.state, point.lsn, state, branching)) {
            needed.push(format!("timeline {}, which branches off at LSN {}", other.timeline_id, point.lsn));
        }
        for (lsn, keeper) in points(keeping) {
            if reaches_below(other, lsn, state, branching) {
                let of = if Arc::ptr_eq(other, state) { String::new() } else { format!(" of {}", other.timeline_id) };
                needed.push(match keeper {
                    Keeper::Lease => format!("a lease of LSN {lsn}{of}, which ends by itself"),
                    Keeper::Hold(name) => format!("the hold {name:?} of LSN {lsn}{of}"),
                    Keeper::Read => format!("a read of LSN {lsn}{of}, which ends by itself"),
                });
            }
        }
    }
    if needed.is_empty() {
        return Ok(());
    }
    let more = needed.len().saturating_sub(NAMED);
    needed.truncate(NAMED);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    Err(StorageError::Invalid(format!(
        "timeline {} is not detached: its history would begin at LSN {}, and what is before is needed by {}{more}. \
         Delete them, or detach these branches first",
        state.timeline_id,
        branching.lsn,
        needed.join("; ")
    )))
}

/// Whether a read of `from` as of `lsn` goes through `state` to what is below its branch point.
fn reaches_below(from: &Arc<TimelineState>, lsn: Lsn, state: &Arc<TimelineState>, branching: &Branching) -> bool {
    if Arc::ptr_eq(from, state) {
        return lsn < branching.lsn;
    }
    let ancestor = from.ancestor().filter(|ancestor| lsn <= ancestor.lsn);
    ancestor.is_some_and(|ancestor| reaches_below(&ancestor.state, lsn, state, branching))
}
