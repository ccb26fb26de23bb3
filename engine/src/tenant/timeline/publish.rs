//! The only path by which a timeline's state changes: first the durable manifest, then the in-memory state, then the
//! upload to the bucket.

use std::sync::Arc;

use super::manifest::{LayerEntry, Manifest, Told};
use super::state::{RecordLsn, TimelineState};
use crate::tenant::layer_map::{Layer, LayerMap, invariants};
use crate::tenant::remote::Wanted;
use errors::StorageError;

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
        gc_cutoff: state.retention.read().cutoff,
        retained: state.retention.read().retained.clone(),
        layers: map.iter().map(|layer| LayerEntry::of(layer)).collect(),
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
