//! How far a timeline is in the bucket: what may be called safe, and what is noted of it here.

use std::sync::Arc;
use std::time::Duration;

use utils::lsn::Lsn;

use super::publish;
use super::state::TimelineState;
use crate::tenant::layer_map::LayerMap;
use crate::tenant::remote;
use errors::StorageError;

/// Everything up to this LSN survives the loss of the disk; `None` if nothing does yet. A branch needs what is before
/// it, too.
pub(super) fn remote_consistent(state: &TimelineState) -> Option<Lsn> {
    let own = state.uploader.as_ref()?.consistent()?;
    match &state.ancestor {
        Some(ancestor) if remote_consistent(&ancestor.state)? < ancestor.lsn => None,
        _ => Some(own),
    }
}

/// Waits until all that is durable here now is in the bucket. True if it is.
pub(super) async fn wait_uploaded(state: &TimelineState, timeout: Duration) -> bool {
    let Some(uploader) = &state.uploader else { return true };
    let target = state.disk_consistent().last;
    let (mut consistent, mut fenced) = (uploader.watch_consistent(), uploader.remote().watch_fenced());
    let uploaded = async {
        tokio::select! {
            biased;
            reached = async {
                uploader.all_accepted().await;
                consistent.wait_for(|lsn| *lsn >= Some(target)).await.is_ok()
            } => reached,
            _ = fenced.wait_for(Option::is_some) => false,
            () = uploader.stopped() => false,
        }
    };
    env::clock::timeout(timeout, uploaded).await.unwrap_or(false)
}

/// Writes the mark of deletion, in place of anything that the uploader would write.
pub(super) async fn bury(state: &TimelineState) -> Result<(), StorageError> {
    let Some(uploader) = &state.uploader else { return Ok(()) };
    uploader.stop().await;
    // With it, the mark is not taken for that of an earlier timeline of this name.
    note_in_bucket(state).await?;
    let manifest = publish::manifest_of(state, &LayerMap::default(), state.disk_consistent());
    remote::bury_timeline(uploader.remote(), manifest).await
}

/// Once the bucket has the timeline, its manifest says so, under our generation: found without its objects it is not
/// taken for a new one, and if its index part is lost, it is known that nobody else has written one since.
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

/// Says so now, if it is so and was not said.
pub(super) async fn note_in_bucket(state: &TimelineState) -> Result<(), StorageError> {
    if state.manifest_is_own() || !state.is_in_bucket() {
        return Ok(());
    }
    publish::again(state).await
}
