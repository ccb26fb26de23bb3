//! How much history one timeline keeps: its own limits, and whether it is archived.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::Serialize;
use utils::lsn::Lsn;

use super::gc;
use super::keeping;
use super::manifest::Limits;
use super::state::TimelineState;
use super::{flush, publish};
use crate::config::RetentionPolicy;
use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use errors::StorageError;

/// How much history a timeline keeps at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct Window {
    /// Its own limits.
    pub limits: Limits,
    /// Below this LSN history has been removed, but for single LSNs; 0/0 if none has.
    pub cutoff: Lsn,
    /// The cutoff if history were removed now.
    pub next_cutoff: Lsn,
    /// What keeps that from being later.
    pub bound_by: &'static str,
    /// From here on every LSN is readable.
    pub oldest: Lsn,
}

/// What is kept of the timeline.
pub(super) fn of(state: &TimelineState) -> Window {
    let keeping = state.keeping.lock();
    let (next_cutoff, bound_by) = gc::cutoff_of(state, &keeping, env::clock::steady_now());
    let cutoff = state.retention.read().cutoff;
    Window { limits: keeping.limits(), cutoff, next_cutoff, bound_by, oldest: state.readable_from() }
}

/// What holds of the server's policy for the timeline.
pub(super) fn policy(state: &TimelineState) -> RetentionPolicy {
    state.keeping.lock().limits().over(&state.conf.retention)
}

/// Makes `limits` the timeline's own, durably.
pub(super) async fn set_limits(state: &TimelineState, limits: Limits) -> Result<(), StorageError> {
    let before = state.keeping.lock().set_limits(limits);
    if before == limits {
        return Ok(());
    }
    let stored = publish::kept(state).await;
    if stored.is_err() {
        state.keeping.lock().set_limits(before);
    }
    stored
}

/// Ends intake for good, and makes durable that only the end of the history is kept from now on. Whoever removes
/// history must be kept from that meanwhile.
///
/// # Errors
/// If what has arrived cannot be made durable; then the timeline is as it was.
pub(super) async fn archive(state: &Arc<TimelineState>) -> Result<(), StorageError> {
    state.check_writable()?;
    {
        // No batch is half way in.
        let _ingest = state.ingest.lock().await;
        if state.archived.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
    }
    let ended = end(state).await;
    if ended.is_err() {
        state.keeping.lock().set_archived(None);
        state.archived.store(false, Ordering::Release);
    }
    ended
}

async fn end(state: &Arc<TimelineState>) -> Result<(), StorageError> {
    flush::flush(state, &RequestContext::new(TaskKind::MgmtRequest, DownloadBehavior::Error)).await?;
    state.keeping.lock().set_archived(Some(keeping::seconds(env::clock::system_now())));
    publish::kept(state).await
}

/// Lets an archived timeline take in WAL again, durably. Its history goes back to when it was archived.
pub(super) async fn unarchive(state: &TimelineState) -> Result<(), StorageError> {
    if !state.is_archived() {
        return Ok(());
    }
    let before = state.keeping.lock().set_archived(None);
    if let Err(error) = publish::kept(state).await {
        state.keeping.lock().set_archived(before);
        return Err(error);
    }
    state.archived.store(false, Ordering::Release);
    Ok(())
}
