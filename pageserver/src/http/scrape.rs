//! Metrics of tenants and timelines collected during a scrape, in addition to those that the process counts as it
//! works.

use std::fmt;
use std::sync::atomic::AtomicU64;

use pageserver_api::shard::TenantShardId;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use utils::id::TimelineId;

use crate::http::condition::Words;
use crate::http::memory;
use crate::http::quotas;
use crate::http::sources::Sources;
use crate::walreceiver::StandbyStatus;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::{Condition, LayerInfo, LayerKind, Timeline};
use metrics::{CompactionJob, Exposition, LabelEnum, METRICS};

type Labels<const N: usize> = [(&'static str, String); N];
type Of<const N: usize> = Family<Labels<N>, Gauge<u64, AtomicU64>>;
type Ratio<const N: usize> = Family<Labels<N>, Gauge<f64, AtomicU64>>;
type Counted<const N: usize> = Family<Labels<N>, Counter>;

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
    height: Of<3>,
    replaced_layers: Of<3>,
    replaced_bytes: Of<3>,
    compaction_failing: Of<3>,
    following: Of<3>,
    standby_following: Of<3>,
    standby_journaled_lsn: Of<3>,
    standby_lag_bytes: Of<3>,
    drained: Gauge<u64, AtomicU64>,
    layers: Of<5>,
    layer_bytes: Of<5>,
    block_memory: Of<1>,
    memory: Of<1>,
    tenant_states: Of<1>,
    quota_exceeded: Of<2>,
    timeline_states: Of<1>,
    task_panics: Of<1>,
    conditions: Conditions,
}

/// How well timelines are compacted.
#[derive(Default)]
struct Conditions {
    debt: Of<4>,
    state: Of<4>,
    idle: Of<4>,
    waiting: Of<4>,
    removal: Of<3>,
    space_ratio: Ratio<3>,
    values: Counted<3>,
    written: Counted<4>,
}

/// The complete text of a scrape, in the format `wanted`.
pub(super) fn text(manager: &TenantManager, sources: &Sources, wanted: Exposition) -> Result<String, fmt::Error> {
    let gauges = Gauges::default();
    let tenants = manager.tenants();
    set(&gauges.tenant_states, [("state", "Active".to_owned())], tenants.len() as u64);
    for tenant in &tenants {
        let most = quotas::of(manager, *tenant).and_then(|quota| quota.bytes);
        let is_exceeded = most.is_some_and(|most| quotas::stored(manager, *tenant) > most);
        let labels = [("tenant_id", tenant.tenant_id.to_string()), ("quota", "bytes".to_owned())];
        set(&gauges.quota_exceeded, labels, u64::from(is_exceeded));
    }
    for (usage, bytes) in manager.conf().resources.blocks.memory_by_use() {
        set(&gauges.block_memory, [("use", usage.to_owned())], bytes);
    }
    for (task, panics) in env::spawn::panics() {
        set(&gauges.task_panics, [("task", task.to_owned())], panics);
    }
    // Timelines that could not be opened, and those that broke later.
    let (mut active, mut broken) = (0, manager.broken().len() as u64);
    let timelines: Vec<Timeline> = tenants.into_iter().filter_map(|id| manager.timelines(id).ok()).flatten().collect();
    for (usage, bytes) in memory::by_use(manager, &timelines) {
        set(&gauges.memory, [("use", usage.to_owned())], bytes);
    }
    for timeline in timelines {
        match timeline.broken() {
            None => active += 1,
            Some(_) => broken += 1,
        }
        gauges.add(&timeline, sources.is_following(&timeline));
    }
    for (tenant, _) in manager.standbys() {
        sources.as_standby(tenant).iter().for_each(|status| gauges.add_standby(tenant, status));
    }
    gauges.drained.set(u64::from(manager.is_drained()));
    set(&gauges.timeline_states, [("state", "Active".to_owned())], active);
    set(&gauges.timeline_states, [("state", "Broken".to_owned())], broken);
    METRICS.scrape(&gauges.registry(), wanted)
}

fn set<const N: usize>(family: &Of<N>, labels: Labels<N>, value: u64)
where
    Labels<N>: EncodeLabelSet,
{
    family.get_or_create(&labels).set(value);
}

fn labels_of(tenant: TenantShardId, timeline: TimelineId) -> Labels<3> {
    let shard = format!("{:02x}{:02x}", tenant.shard_number.0, tenant.shard_count.0);
    [("tenant_id", tenant.tenant_id.to_string()), ("shard_id", shard), ("timeline_id", timeline.to_string())]
}

impl Gauges {
    fn add_standby(&self, tenant: TenantShardId, status: &StandbyStatus) {
        let labels = labels_of(tenant, status.timeline_id);
        set(&self.standby_following, labels.clone(), u64::from(status.is_following()));
        set(&self.standby_journaled_lsn, labels.clone(), status.journaled_lsn.0);
        if let Some(lag) = status.lag_bytes {
            set(&self.standby_lag_bytes, labels, lag);
        }
    }

    fn add(&self, timeline: &Timeline, is_following: Option<bool>) {
        let (tenant, info, condition) = (timeline.tenant_shard_id(), timeline.info(), timeline.condition());
        let labels = labels_of(tenant, timeline.timeline_id());
        set(&self.last_record_lsn, labels.clone(), info.last_record_lsn.0);
        set(&self.disk_consistent_lsn, labels.clone(), info.disk_consistent_lsn.0);
        set(&self.remote_consistent_lsn, labels.clone(), info.remote_consistent_lsn.map_or(0, |lsn| lsn.0));
        set(&self.remote_physical_size, labels.clone(), info.in_bucket_bytes);
        set(&self.upload_queue_layers, labels.clone(), info.upload_layers as u64);
        set(&self.upload_queue_bytes, labels.clone(), info.upload_bytes);
        set(&self.resident_physical_size, labels.clone(), info.resident_bytes);
        set(&self.ephemeral_bytes, labels.clone(), info.in_memory_bytes);
        set(&self.height, labels.clone(), condition.height as u64);
        set(&self.replaced_layers, labels.clone(), info.replaced_layers as u64);
        set(&self.replaced_bytes, labels.clone(), info.replaced_bytes);
        set(&self.compaction_failing, labels.clone(), u64::from(info.compaction_error.is_some()));
        self.conditions.add(&labels, &condition);
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
            ("layer_height", "Largest number of sorted delta layers above an image of the same keys", &self.height),
            ("replaced_layers", "Layers that were replaced and are still being read", &self.replaced_layers),
            (
                "replaced_layer_bytes",
                "Bytes of layers that were replaced and are still being read",
                &self.replaced_bytes,
            ),
            ("compaction_failing", "Whether the last compaction job failed", &self.compaction_failing),
            ("walreceiver_following", "Whether WAL comes, of timelines that follow a server", &self.following),
            (
                "standby_following",
                "Whether WAL comes to this standby, of other servers' timelines",
                &self.standby_following,
            ),
            (
                "standby_journaled_lsn",
                "WAL is durable in the journal of this standby up to here, without a gap behind what the bucket has",
                &self.standby_journaled_lsn,
            ),
            (
                "standby_lag_bytes",
                "Bytes of WAL that this standby does not have of what the server has said that it has",
                &self.standby_lag_bytes,
            ),
        ];
        for (name, help, family) in named {
            registry.register(name, help, family.clone());
        }
        let help = "Whether this server is to own nothing, and to take nothing over, as far as it has seen";
        registry.register("drained", help, self.drained.clone());
        registry.register("layers", "Layers but the open one", self.layers.clone());
        registry.register("layer_bytes", "Bytes of layers but the open one", self.layer_bytes.clone());
        let help = "Memory of blocks from the bucket, which block_cache_memory limits";
        registry.register("block_memory_bytes", help, self.block_memory.clone());
        let help = "Memory by what it is used for, as far as that is counted, but for blocks from the bucket";
        registry.register("memory_bytes", help, self.memory.clone());
        registry.register("tenant_states", "Tenants", self.tenant_states.clone());
        let help = "Whether a tenant has more than its quota";
        registry.register("tenant_quota_exceeded", help, self.quota_exceeded.clone());
        registry.register("timeline_states", "Timelines", self.timeline_states.clone());
        let help = "Panics since the process started, by task";
        registry.register("task_panics", help, self.task_panics.clone());
        self.conditions.register(&mut registry);
        registry
    }
}

impl Conditions {
    fn add(&self, labels: &Labels<3>, condition: &Condition) {
        let and = |name: &'static str, value: &str| {
            let [tenant, shard, timeline] = labels.clone();
            [tenant, shard, timeline, (name, value.to_owned())]
        };
        let waiting = condition.waiting;
        let reasons = [("read", waiting.read), ("unconfirmed", waiting.unconfirmed), ("history", waiting.history)];
        for (why, bytes) in reasons {
            set(&self.waiting, and("why", why), bytes);
        }
        let now = Words::of(&condition.activity).state;
        for state in Words::STATES {
            set(&self.state, and("state", state), u64::from(state == now));
        }
        let add = |family: &Counted<4>, kind: &str, bytes: u64| {
            family.get_or_create(&and("by", kind)).inc_by(bytes);
        };
        add(&self.written, "flush", condition.flushed);
        for (kind, since) in CompactionJob::ALL.iter().zip(&condition.since_jobs) {
            add(&self.written, kind.text(), condition.counts.of(*kind).bytes_out);
            set(&self.debt, and("job", kind.text()), condition.debt.of(*kind));
            if let Some(since) = since {
                set(&self.idle, and("job", kind.text()), since.as_secs());
            }
        }
        self.values.get_or_create(labels).inc_by(condition.taken_in);
        if let Some(ratio) = condition.space_ratio() {
            self.space_ratio.get_or_create(labels).set(ratio);
        }
        if let Some(since) = condition.since_removal {
            set(&self.removal, labels.clone(), since.as_secs());
        }
    }

    fn register(&self, registry: &mut Registry) {
        let help = "Bytes that compaction jobs would read that are due, by kind";
        registry.register("compaction_debt_bytes", help, self.debt.clone());
        let help = "What compaction does, or why it does nothing: 1 for one of the states";
        registry.register("compaction_state", help, self.state.clone());
        let help = "Seconds since a compaction job last ended well, by kind, if any has since the start";
        registry.register("compaction_idle_seconds", help, self.idle.clone());
        let help =
            "Bytes that wait to be freed: layers that were replaced, in the files and in the bucket, and history";
        registry.register("waiting_bytes", help, self.waiting.clone());
        let help = "Seconds since history was last removed, if any was since the start";
        registry.register("history_removal_age_seconds", help, self.removal.clone());
        let help = "Bytes of all layers for each byte of the newest images";
        registry.register("space_ratio", help, self.space_ratio.clone());
        let help = "Bytes of values taken in since the timeline was opened";
        registry.register("timeline_value_bytes", help, self.values.clone());
        let help = "Bytes of layers written since the timeline was opened, by flushes and by kind of job";
        registry.register("timeline_written_bytes", help, self.written.clone());
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
