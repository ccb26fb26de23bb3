//! Metrics of tenants and timelines collected during a scrape, in addition to those that the process counts as it
//! works.

use std::fmt;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::http::sources::Sources;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::{LayerInfo, LayerKind, Timeline};
use metrics::{Exposition, METRICS};

type Of<const N: usize> = Family<[(&'static str, String); N], Gauge<u64, AtomicU64>>;

/// Gauges per timeline, filled for one scrape.
#[derive(Default)]
struct Gauges {
    last_record_lsn: Of<3>,
    disk_consistent_lsn: Of<3>,
    remote_consistent_lsn: Of<3>,
    remote_physical_size: Of<3>,
    upload_queue_layers: Of<3>,
    upload_queue_bytes: Of<3>,
    resident_physical_size: Of<3>,
    ephemeral_bytes: Of<3>,
    following: Of<3>,
    layers: Of<5>,
    layer_bytes: Of<5>,
    block_memory: Of<1>,
    tenant_states: Of<1>,
    timeline_states: Of<1>,
    task_panics: Of<1>,
}

/// The complete text of a scrape, in the format `wanted`.
pub(super) fn text(manager: &TenantManager, sources: &Sources, wanted: Exposition) -> Result<String, fmt::Error> {
    let gauges = Gauges::default();
    let tenants = manager.tenants();
    set(&gauges.tenant_states, [("state", "Active".to_owned())], tenants.len() as u64);
    for (usage, bytes) in manager.conf().resources.blocks.memory_by_use() {
        set(&gauges.block_memory, [("use", usage.to_owned())], bytes);
    }
    for (task, panics) in env::spawn::panics() {
        set(&gauges.task_panics, [("task", task.to_owned())], panics);
    }
    // Timelines that could not be opened, and those that broke later.
    let (mut active, mut broken) = (0, manager.broken().len() as u64);
    for timeline in tenants.into_iter().filter_map(|id| manager.timelines(id).ok()).flatten() {
        match timeline.broken() {
            None => active += 1,
            Some(_) => broken += 1,
        }
        gauges.add(&timeline, sources.is_following(&timeline));
    }
    set(&gauges.timeline_states, [("state", "Active".to_owned())], active);
    set(&gauges.timeline_states, [("state", "Broken".to_owned())], broken);
    METRICS.scrape(&gauges.registry(), wanted)
}

fn set<const N: usize>(family: &Of<N>, labels: [(&'static str, String); N], value: u64)
where
    [(&'static str, String); N]: EncodeLabelSet,
{
    family.get_or_create(&labels).set(value);
}

impl Gauges {
    fn add(&self, timeline: &Timeline, is_following: Option<bool>) {
        let (tenant, info) = (timeline.tenant_shard_id(), timeline.info());
        let shard = format!("{:02x}{:02x}", tenant.shard_number.0, tenant.shard_count.0);
        let labels = [
            ("tenant_id", tenant.tenant_id.to_string()),
            ("shard_id", shard),
            ("timeline_id", timeline.timeline_id().to_string()),
        ];
        set(&self.last_record_lsn, labels.clone(), info.last_record_lsn.0);
        set(&self.disk_consistent_lsn, labels.clone(), info.disk_consistent_lsn.0);
        set(&self.remote_consistent_lsn, labels.clone(), info.remote_consistent_lsn.map_or(0, |lsn| lsn.0));
        set(&self.remote_physical_size, labels.clone(), info.in_bucket_bytes);
        set(&self.upload_queue_layers, labels.clone(), info.upload_layers as u64);
        set(&self.upload_queue_bytes, labels.clone(), info.upload_bytes);
        set(&self.resident_physical_size, labels.clone(), info.resident_bytes);
        set(&self.ephemeral_bytes, labels.clone(), info.in_memory_bytes);
        if let Some(is_following) = is_following {
            set(&self.following, labels.clone(), u64::from(is_following));
        }
        // The open layer does not count, since it comes and goes.
        for layer in timeline.layers().iter().filter(|layer| layer.kind != LayerKind::Open) {
            let [tenant, shard, timeline] = labels.clone();
            let (level, kind) = level_and_kind(layer);
            let labels = [tenant, shard, timeline, ("level", level.to_owned()), ("kind", kind.to_owned())];
            self.layers.get_or_create(&labels).inc();
            self.layer_bytes.get_or_create(&labels).inc_by(layer.size);
        }
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::with_prefix("pageserver");
        let named = [
            ("last_record_lsn", "History is complete up to here, in memory", &self.last_record_lsn),
            ("disk_consistent_lsn", "History is complete up to here, on disk", &self.disk_consistent_lsn),
            ("remote_consistent_lsn", "History is complete up to here, in the bucket", &self.remote_consistent_lsn),
            ("remote_physical_size", "Bytes of layers that the bucket has", &self.remote_physical_size),
            ("upload_queue_layers", "Layers that wait to be uploaded", &self.upload_queue_layers),
            ("upload_queue_bytes", "Bytes of layers that wait to be uploaded", &self.upload_queue_bytes),
            (
                "resident_physical_size",
                "Bytes of layer files that are whole on this disk",
                &self.resident_physical_size,
            ),
            ("timeline_ephemeral_bytes", "Bytes of values that are not in layer files", &self.ephemeral_bytes),
            ("walreceiver_following", "Whether WAL comes, of timelines that follow a server", &self.following),
        ];
        for (name, help, family) in named {
            registry.register(name, help, family.clone());
        }
        registry.register("layers", "Layers but the open one", self.layers.clone());
        registry.register("layer_bytes", "Bytes of layers but the open one", self.layer_bytes.clone());
        let help = "Memory of blocks from the bucket, which block_cache_memory limits";
        registry.register("block_memory_bytes", help, self.block_memory.clone());
        registry.register("tenant_states", "Tenants", self.tenant_states.clone());
        registry.register("timeline_states", "Timelines", self.timeline_states.clone());
        let help = "Panics since the process started, by task";
        registry.register("task_panics", help, self.task_panics.clone());
        registry
    }
}

fn level_and_kind(layer: &LayerInfo) -> (&'static str, &'static str) {
    match layer.kind {
        LayerKind::Open | LayerKind::Frozen => ("frozen", "delta"),
        LayerKind::Delta if layer.l0 => ("l0", "delta"),
        LayerKind::Delta => ("l1", "delta"),
        LayerKind::Image => ("l1", "image"),
    }
}
