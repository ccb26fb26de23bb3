//! The only path by which a timeline's state changes: first the durable manifest, then the in-memory state, then the
//! upload to the bucket.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::MutexGuard;

use super::keeping;
use super::manifest::{LayerEntry, Manifest, Told};
use super::retention::Retention;
use super::state::{Branching, RecordLsn, TimelineState};
use super::thinning;
use crate::tenant::layer_map::{Layer, LayerMap, Violation, invariants};
use crate::tenant::remote::Wanted;
use errors::StorageError;
use utils::lsn::Lsn;

/// Adds `layer`, the next L0 layer, if there is one, and makes `consistent` the durable position. The caller must hold
/// the `flusher` lock.
pub(super) async fn flushed(
    state: &TimelineState,
    layer: Option<Arc<Layer>>,
    consistent: RecordLsn,
) -> Result<(), StorageError> {
    let _publisher = state.publisher.lock().await;
    let mut map = state.layers().map.clone();
    if let Some(layer) = layer {
        map = map.with_l0(layer).map_err(|violation| StorageError::Internal(violation.to_string()))?;
    }
    if fault::planted(fault::Bug::PromiseTooEarly) {
        state.advance_disk_consistent(consistent);
    }
    let manifest = manifest_of(state, &map, consistent);
    store(state, &manifest).await?;
    state.update_layers(|layers| {
        layers.map = map.clone();
        layers.frozen.retain(|frozen| frozen.end.last > consistent.last);
    });
    state.advance_disk_consistent(consistent);
    submit(state, manifest, &map);
    Ok(())
}

/// Replaces the layers `removed` by `added`, which must be durable under their names. False if that is no longer
/// possible, as a removed one is not there any more, or `check` says so; then nothing has changed.
///
/// # Errors
/// If the new layers do not have what the old ones had; or if the manifest could not be stored. Unless that was for
/// lack of room, the new layers must stay, as the manifest on disk may name them.
pub(super) async fn replaced(
    state: &TimelineState,
    removed: &[Arc<Layer>],
    added: Vec<Arc<Layer>>,
    check: impl FnOnce() -> bool,
) -> Result<bool, StorageError> {
    let descs: Vec<_> = added.iter().map(|layer| layer.desc()).collect();
    invariants::replaces(removed.iter().map(|layer| layer.desc()), &descs).map_err(unfit)?;
    let publisher = state.publisher.lock().await;
    if !check() {
        return Ok(false);
    }
    let files = |layers: &[Arc<Layer>]| layers.iter().map(|layer| layer.identity().file_id).collect::<Vec<u64>>();
    let (before, after) = (files(removed), files(&added));
    let is_done = change_layers(state, &publisher, removed, added).await?;
    if is_done {
        state.work.note_replaced(&before, &after);
    }
    Ok(is_done)
}

/// Removes layers that no read that is allowed visits any more, and stores which ones are allowed. False if one of the
/// images at which these reads end, `bases`, is not there any more: then nothing has changed.
pub(super) async fn trimmed(
    state: &TimelineState,
    removed: &[Arc<Layer>],
    bases: &[Arc<Layer>],
) -> Result<bool, StorageError> {
    let publisher = state.publisher.lock().await;
    let there: HashSet<u64> = state.layers().map.iter().map(|layer| layer.identity().file_id).collect();
    let is_there = |base: &Arc<Layer>| there.contains(&base.identity().file_id);
    if !bases.iter().all(is_there) && !fault::planted(fault::Bug::PublishWithoutRecheck) {
        return Ok(false);
    }
    change_layers(state, &publisher, removed, Vec::new()).await
}

/// Removes the images within the history that are to go. Returns their number and bytes.
pub(super) async fn thinned(state: &TimelineState) -> Result<(usize, u64), StorageError> {
    let publisher = state.publisher.lock().await;
    // Nothing that a cutoff to come rests on: that is stored here before anything is removed because of it.
    let cutoff = state.retention.read().cutoff;
    let removed = thinning::superfluous(state, &state.layers().map, cutoff);
    if removed.is_empty() || !change_layers(state, &publisher, &removed, Vec::new()).await? {
        return Ok((0, 0));
    }
    Ok((removed.len(), removed.iter().map(|layer| layer.desc().file_size).sum()))
}

/// Stores that the timeline needs its ancestor at `branching` no more, if `check` permits it. From before `check` until
/// the end nothing below the branch point is promised to anybody.
pub(super) async fn detached(
    state: &TimelineState,
    branching: &Branching,
    check: impl FnOnce() -> Result<(), StorageError>,
) -> Result<(), StorageError> {
    let _guard = state.enter()?;
    state.check_writable()?;
    let _publisher = state.publisher.lock().await;
    check()?;
    {
        // The same as before, without the ancestor's help.
        let inherited = branching.state.redo_settings();
        let mut redo = state.redo.write();
        *redo = redo.clone().continuing(inherited, branching.lsn);
    }
    let layers = state.layers();
    let edition = state.edition() + 1;
    let manifest = manifest_of(state, &layers.map, state.disk_consistent());
    let before = Retention { cutoff: manifest.gc_cutoff, retained: manifest.retained.clone() };
    let Retention { cutoff, retained } = before.beginning_at(branching.lsn);
    let manifest = Manifest { edition, gc_cutoff: cutoff, retained, detached: true, ..manifest };
    let early = fault::planted(fault::Bug::AncestorBeforeChildCutoff);
    let stored = if early { Ok(()) } else { store(state, &manifest).await };
    if let Err(error) = stored {
        state.note_error(&error);
        // If the manifest is there all the same, the next one replaces it, or a restart goes on from it: the ancestor
        // is there in both cases.
        state.set_detached(false);
        return Err(error);
    }
    state.set_edition(edition);
    {
        let mut retention = state.retention.write();
        *retention = retention.beginning_at(branching.lsn);
    }
    submit(state, manifest, &layers.map);
    Ok(())
}

async fn change_layers(
    state: &TimelineState,
    _publisher: &MutexGuard<'_, ()>,
    removed: &[Arc<Layer>],
    added: Vec<Arc<Layer>>,
) -> Result<bool, StorageError> {
    let only_removes = added.is_empty();
    let map = match state.layers().map.replaced(removed, added) {
        Err(Violation::Missing(_)) => return Ok(false),
        map => map.map_err(unfit)?,
    };
    let edition = state.edition() + 1;
    let mut manifest = Manifest { edition, ..manifest_of(state, &map, state.disk_consistent()) };
    if only_removes && fault::planted(fault::Bug::RetainAfterNotBefore) {
        (manifest.gc_cutoff, manifest.retained) = (Lsn::INVALID, Vec::new());
    }
    store(state, &manifest).await.inspect_err(|error| state.note_error(error))?;
    // Whoever finds the new edition also finds its layers.
    state.update_layers(|layers| layers.map = map.clone());
    state.set_edition(edition);
    state.graveyard.bury(removed);
    submit(state, manifest, &map);
    if let Some(uploader) = &state.uploader {
        let in_bucket = removed.iter().filter(|layer| layer.is_remote());
        let bytes = in_bucket.map(|layer| layer.file_desc().file_size).sum();
        state.work.note_outdated(uploader.submitted(), bytes);
    }
    Ok(true)
}

/// Not an internal error: what is stored is as good as before, and ingest goes on.
fn unfit(violation: Violation) -> StorageError {
    StorageError::Invalid(format!("new layers are refused: {violation}"))
}

/// Makes durable which LSNs are kept readable, and has the bucket learn of it.
pub(super) async fn kept(state: &TimelineState) -> Result<(), StorageError> {
    let _guard = state.enter()?;
    state.check_writable()?;
    let _publisher = state.publisher.lock().await;
    let layers = state.layers();
    let manifest = manifest_of(state, &layers.map, state.disk_consistent());
    store(state, &manifest).await.inspect_err(|error| state.note_error(error))?;
    submit(state, manifest, &layers.map);
    Ok(())
}

/// Replaces the externally supplied metadata of the timeline.
pub(super) async fn told(state: &TimelineState, told: Told) -> Result<(), StorageError> {
    let _guard = state.enter()?;
    let _publisher = state.publisher.lock().await;
    let layers = state.layers();
    let manifest = Manifest { wal_source: Some(told), ..manifest_of(state, &layers.map, state.disk_consistent()) };
    store(state, &manifest).await?;
    state.told.write().clone_from(&manifest.wal_source);
    submit(state, manifest, &layers.map);
    Ok(())
}

/// Rewrites the manifest from the current state. Submits nothing, as the bucket already knows that state.
pub(super) async fn again(state: &TimelineState) -> Result<(), StorageError> {
    let _guard = state.enter()?;
    let _publisher = state.publisher.lock().await;
    store(state, &manifest_of(state, &state.layers().map, state.disk_consistent())).await
}

/// The manifest of the timeline with these layers.
pub(super) fn manifest_of(state: &TimelineState, map: &LayerMap, consistent: RecordLsn) -> Manifest {
    // One lock after the other: garbage collection takes both, in this order.
    let ahead = keeping::ahead(env::clock::system_now(), env::clock::steady_now());
    let kept = state.keeping.lock().kept(ahead);
    let Retention { cutoff, retained } = state.retention.read().clone();
    Manifest {
        tenant_shard_id: state.tenant_shard_id,
        timeline_id: state.timeline_id,
        generation: state.generation,
        in_bucket: state.is_in_bucket(),
        deleted: false,
        wal_source: state.told.read().clone(),
        origin: state.origin,
        wal_log_hints_changes: state.redo.read().wal_log_hints_changes(),
        disk_consistent_lsn: consistent.last,
        prev_record_lsn: consistent.prev,
        edition: state.edition(),
        gc_cutoff: cutoff,
        retained,
        layers: map.iter().map(|layer| LayerEntry::of(layer)).collect(),
        kept,
        detached: state.is_detached(),
    }
}

/// Passes `manifest`, which must be durable here, on to the uploader.
pub(super) fn submit(state: &TimelineState, manifest: Manifest, map: &LayerMap) {
    if let Some(uploader) = &state.uploader {
        uploader.submit(Wanted::new(manifest, map.iter().cloned().collect()));
    }
}

/// Checks what must hold of a manifest before it replaces the one from which a restart would begin.
fn assert_whole(state: &TimelineState, manifest: &Manifest) {
    let (durable, record) = (state.disk_consistent().last, state.record_lsn().last);
    let says = manifest.disk_consistent_lsn;
    assert!(durable <= says && says <= record, "a manifest of LSN {says}, between {durable} and {record}");
    assert!(!manifest.deleted, "the manifest of a timeline that lives says that it is deleted");
    assert!(manifest.in_bucket || !state.manifest_in_bucket(), "a manifest forgets that the bucket has the timeline");
    let own = state.layer_generation();
    let later = manifest.layers.iter().find(|entry| entry.generation > own);
    assert!(later.is_none(), "generation {own} names a layer of a later one: {later:?}");
    if cfg!(debug_assertions) {
        let descs = manifest.layers.iter().map(|entry| entry.desc(state.tenant_shard_id, state.timeline_id));
        let descs: Vec<_> = descs.collect();
        let sound = invariants::check(descs.iter()).and_then(|()| invariants::within_consistent(descs.iter(), says));
        assert_eq!(sound, Ok(()), "layers that a restart would refuse");
    }
}

/// Makes `manifest` the one in the timeline's directory.
async fn store(state: &TimelineState, manifest: &Manifest) -> Result<(), StorageError> {
    assert_whole(state, manifest);
    manifest.store(&state.dir).await?;
    if manifest.in_bucket {
        state.set_manifest_in_bucket();
    }
    Ok(())
}
