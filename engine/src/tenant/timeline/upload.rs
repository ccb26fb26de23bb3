//! How far a timeline is in the bucket: what counts as safe there, and what the local manifest records of it.

use std::sync::Arc;
use std::time::Duration;

use utils::lsn::Lsn;

use super::publish;
use super::state::TimelineState;
use crate::tenant::layer_map::LayerMap;
use crate::tenant::remote;
use errors::StorageError;

/// Everything up to this LSN survives the loss of the disk; `None` if nothing does yet. A branch also needs its
/// ancestor's history up to the branch point.
pub(super) fn remote_consistent(state: &TimelineState) -> Option<Lsn> {
    let own = state.uploader.as_ref()?.consistent()?;
    match state.ancestor() {
        Some(ancestor) if remote_consistent(&ancestor.state)? < ancestor.lsn => None,
        _ => Some(own),
    }
}

/// Waits until everything that is durable here now is in the bucket, the history that it inherits included. True if it
/// is.
pub(super) async fn wait_uploaded(state: &TimelineState, timeout: Duration) -> bool {
    let uploaded = async {
        let mut all = is_uploaded(state, state.disk_consistent().last).await;
        let mut ancestor = state.ancestor();
        while let Some(of) = ancestor.filter(|_| all) {
            all = is_uploaded(&of.state, of.lsn.min(of.state.disk_consistent().last)).await;
            ancestor = of.state.ancestor();
        }
        all
    };
    env::clock::timeout(timeout, uploaded).await.unwrap_or(false)
}

/// Waits until what is durable here of one timeline's own history up to `lsn` is in the bucket. True if it is.
async fn is_uploaded(state: &TimelineState, lsn: Lsn) -> bool {
    let Some(uploader) = &state.uploader else { return true };
    let (mut consistent, mut fenced) = (uploader.watch_consistent(), uploader.remote().watch_fenced());
    tokio::select! {
        biased;
        reached = async {
            uploader.all_accepted().await;
            consistent.wait_for(|known| *known >= Some(lsn)).await.is_ok()
        } => reached,
        _ = fenced.wait_for(Option::is_some) => false,
        () = uploader.stopped() => false,
    }
}

/// Writes the deletion mark, in place of anything that the uploader would write.
pub(super) async fn bury(state: &TimelineState) -> Result<(), StorageError> {
    let Some(uploader) = &state.uploader else { return Ok(()) };
    // Its uploads end for good: not while the bucket is away.
    uploader.remote().check().await?;
    uploader.stop().await;
    if fault::planted(fault::Bug::DeleteWithoutMark) {
        return Ok(());
    }
    // With this note, the mark is not taken for that of an earlier timeline with this id.
    note_in_bucket(state).await?;
    let manifest = publish::manifest_of(state, &LayerMap::default(), state.disk_consistent());
    remote::bury_timeline(uploader.remote(), manifest).await
}

/// Once the bucket has the timeline, records that in the manifest under our generation: with its objects gone, it is
/// not taken for a new timeline; with its index part lost, it is known that nobody else has written one since.
pub(super) async fn note_when_in_bucket(state: Arc<TimelineState>) {
    let Some(uploader) = state.uploader.as_ref().filter(|_| !state.manifest_is_own()) else { return };
    let mut consistent = uploader.watch_consistent();
    tokio::select! {
        reached = consistent.wait_for(Option::is_some) => if reached.is_err() { return },
        () = state.cancel.cancelled() => return,
    }
    drop(consistent);
    if let Err(error) = note_in_bucket(&state).await {
        let timeline = state.timeline_id;
        tracing::warn!(%timeline, "the manifest does not say yet that it is in the bucket: {error}");
    }
}

/// Records now that the bucket has the timeline, if that is so and not yet recorded.
pub(super) async fn note_in_bucket(state: &TimelineState) -> Result<(), StorageError> {
    if state.manifest_is_own() || !state.is_in_bucket() {
        return Ok(());
    }
    publish::again(state).await
}
