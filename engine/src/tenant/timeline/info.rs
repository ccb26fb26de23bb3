//! A timeline's properties and progress, for people.

use std::ops::Range;

use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use serde::Serialize;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::debt::CompactionCounts;
use super::detaching::DetachProgress;
use super::state::TimelineState;
use super::upload;
use crate::tenant::layer_map::Layer;

/// A timeline at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct TimelineInfo {
    /// The tenant shard.
    pub tenant_shard_id: TenantShardId,
    /// The timeline.
    pub timeline_id: TimelineId,
    /// Major version of the cluster.
    pub pg_version: u32,
    /// The cluster's system identifier.
    pub system_identifier: u64,
    /// Size of a WAL segment in bytes.
    pub wal_segment_size: u32,
    /// The timeline that this one continues.
    pub ancestor_timeline_id: Option<TimelineId>,
    /// The last LSN that it has in common with its ancestor.
    pub ancestor_lsn: Option<Lsn>,
    /// Where it was a branch, if it was detached from its ancestor.
    pub detached_lsn: Option<Lsn>,
    /// How far detaching it is, if somebody does that.
    pub detach: Option<DetachProgress>,
    /// The LSN at which its own history begins.
    pub import_lsn: Lsn,
    /// From here on every LSN is readable; below it only those that something keeps.
    pub min_readable_lsn: Lsn,
    /// Below this LSN history has been removed, but for `retained_lsns`; 0/0 if none has.
    pub gc_cutoff: Lsn,
    /// Readable LSNs below `gc_cutoff`.
    pub retained_lsns: Vec<Lsn>,
    /// When it was archived, in seconds since 1970: then it takes in nothing, and only its end is kept.
    pub archived_at: Option<u64>,
    /// History is complete up to here, in memory.
    pub last_record_lsn: Lsn,
    /// Start of the last record; 0/0 if not known.
    pub prev_record_lsn: Lsn,
    /// History is complete up to here, durably.
    pub disk_consistent_lsn: Lsn,
    /// History is complete up to here in the bucket: it survives the loss of the disk.
    pub remote_consistent_lsn: Option<Lsn>,
    /// The generation under which this server writes; 0 if there never was a bucket.
    pub generation: u32,
    /// Why this server may no longer write, if another one has taken the tenant over.
    pub fenced: Option<String>,
    /// Number of layer files.
    pub layers: usize,
    /// Number of L0 layers among them.
    pub l0_layers: usize,
    /// Size of all layer files in bytes.
    pub layer_bytes: u64,
    /// Bytes of layers whose whole files are on this disk.
    pub resident_bytes: u64,
    /// Bytes of layers that the bucket has.
    pub in_bucket_bytes: u64,
    /// Layers waiting to be uploaded.
    pub upload_layers: usize,
    /// Their bytes.
    pub upload_bytes: u64,
    /// Why the last upload failed, until one succeeds.
    pub upload_error: Option<String>,
    /// In-memory layers waiting to be written.
    pub frozen_layers: usize,
    /// Layers that were replaced, and whose files are removed once nobody reads them any more.
    pub replaced_layers: usize,
    /// Their bytes.
    pub replaced_bytes: u64,
    /// What compaction has done since the timeline was opened.
    pub compaction: CompactionCounts,
    /// Why compaction failed last, until it succeeds.
    pub compaction_error: Option<String>,
    /// Bytes of values in memory and ephemeral files.
    pub in_memory_bytes: u64,
    /// Bytes of memory for the indexes of these values.
    pub in_memory_index_bytes: u64,
}

impl TimelineInfo {
    pub(super) fn of(state: &TimelineState) -> Self {
        let (ancestor, layers) = (state.ancestor(), state.layers());
        let (record, durable) = (state.record_lsn(), state.disk_consistent());
        let upload = state.uploader.as_ref().map(|uploader| uploader.status()).unwrap_or_default();
        let sum = |counts: fn(&Layer) -> bool| {
            layers.map.iter().filter(|layer| counts(layer)).map(|layer| layer.desc().file_size).sum()
        };
        let retention = state.retention.read().clone();
        let open_bytes = layers.open.as_ref().map_or(0, |layer| layer.size());
        Self {
            tenant_shard_id: state.tenant_shard_id,
            timeline_id: state.timeline_id,
            pg_version: state.origin.pg_version.major(),
            system_identifier: state.origin.system_identifier,
            wal_segment_size: state.origin.wal_segment_size,
            ancestor_timeline_id: ancestor.as_ref().map(|ancestor| ancestor.state.timeline_id),
            ancestor_lsn: ancestor.as_ref().map(|ancestor| ancestor.lsn),
            detached_lsn: (ancestor.is_none() && state.is_detached()).then_some(state.origin.import_lsn),
            detach: state.detaching.progress(),
            import_lsn: state.origin.import_lsn,
            min_readable_lsn: state.readable_from(),
            gc_cutoff: retention.cutoff,
            retained_lsns: retention.retained,
            archived_at: state.archived_at(),
            last_record_lsn: record.last,
            prev_record_lsn: record.prev,
            disk_consistent_lsn: durable.last,
            remote_consistent_lsn: upload::remote_consistent(state),
            generation: state.generation,
            fenced: state.uploader.as_ref().and_then(|uploader| uploader.remote().fenced()),
            layers: layers.map.len(),
            l0_layers: layers.map.l0_layers().len(),
            layer_bytes: layers.map.total_size(),
            resident_bytes: sum(Layer::is_local),
            in_bucket_bytes: sum(Layer::is_remote),
            upload_layers: upload.waiting,
            upload_bytes: upload.waiting_bytes,
            upload_error: upload.last_error,
            frozen_layers: layers.frozen.len(),
            replaced_layers: state.graveyard.len(),
            replaced_bytes: state.graveyard.bytes(),
            compaction: *state.compaction.counts.lock(),
            compaction_error: compaction_error(state),
            in_memory_index_bytes: layers
                .open
                .iter()
                .chain(layers.frozen.iter().map(|frozen| &frozen.layer))
                .map(|layer| layer.index_memory() as u64)
                .sum(),
            in_memory_bytes: open_bytes + layers.frozen.iter().map(|frozen| frozen.layer.size()).sum::<u64>(),
        }
    }
}

fn compaction_error(state: &TimelineState) -> Option<String> {
    let failed = state.compaction.failure().map(|failure| failure.reason);
    failed.or_else(|| state.compaction.damage.lock().reason().map(str::to_owned))
}

/// The kind of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum LayerKind {
    /// In memory, accepting values.
    Open,
    /// In memory, waiting to be written.
    Frozen,
    /// A file of values over a range of LSNs.
    Delta,
    /// A file of images at one LSN.
    Image,
}

/// A layer at one moment.
#[derive(Clone, Debug)]
pub struct LayerInfo {
    /// Its kind.
    pub kind: LayerKind,
    /// Keys covered, end exclusive.
    pub keys: Range<Key>,
    /// LSNs covered, end exclusive. The open layer is given as ending after the last record.
    pub lsns: Range<Lsn>,
    /// Size of the file in bytes, or of the values in memory.
    pub size: u64,
    /// Whether it is an L0 layer, or an in-memory layer, which becomes one.
    pub l0: bool,
    /// Name of the file, if it is one.
    pub file_name: Option<String>,
    /// Whether the whole layer is on this disk or in memory.
    pub resident: bool,
    /// Whether the bucket has it.
    pub in_bucket: bool,
    /// Whether it has a key filter.
    pub filter: bool,
    /// When it was last read, in milliseconds since 1970; 0 if it is in memory, or only in the bucket and was not read
    /// here.
    pub last_access: u64,
    /// Number of reads since the timeline was opened, plus one if the layer was local then or was made here; 0 if it
    /// is in memory.
    pub accesses: u64,
}

/// All layers of a timeline.
pub(super) fn layers(state: &TimelineState) -> Vec<LayerInfo> {
    let layers = state.layers();
    let in_memory = |kind, start: Lsn, last: Lsn, size| LayerInfo {
        kind,
        keys: Key::MIN..Key::MAX,
        lsns: start..(last + 1).max(start),
        size,
        l0: true,
        file_name: None,
        resident: true,
        in_bucket: false,
        filter: false,
        last_access: 0,
        accesses: 0,
    };
    let open = layers.open.iter();
    let open = open.map(|layer| in_memory(LayerKind::Open, layer.start_lsn(), state.record_lsn().last, layer.size()));
    let frozen = layers.frozen.iter().rev();
    let frozen = frozen
        .map(|frozen| in_memory(LayerKind::Frozen, frozen.layer.start_lsn(), frozen.end.last, frozen.layer.size()));
    let files = layers.map.iter().map(|layer| {
        let desc = layer.desc();
        LayerInfo {
            kind: if desc.is_delta { LayerKind::Delta } else { LayerKind::Image },
            keys: desc.key_range.clone(),
            lsns: desc.lsn_range.clone(),
            size: desc.file_size,
            l0: desc.is_l0(),
            file_name: layer.path().file_name().map(str::to_owned),
            resident: layer.is_local(),
            in_bucket: layer.is_remote(),
            filter: layer.identity().filter_blocks > 0,
            last_access: layer.last_access(),
            accesses: layer.accesses(),
        }
    });
    open.chain(frozen).chain(files).collect()
}
