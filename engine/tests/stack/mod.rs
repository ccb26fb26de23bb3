//! Shared parts of the layer stack tests: timelines to compare with a model of their history.
// Each test binary uses only some of it.
#![allow(dead_code, unused_imports, reason = "shared by several test binaries")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use camino::Utf8Path;
use engine::config::{CompactionPolicy, PageServerConf, RetentionPolicy};
use engine::context::{DownloadBehavior, RequestContext};
use engine::live_keys::{Answer, LiveKeys, Values};
use engine::task_mgr::TaskKind;
use engine::tenant::remote::TenantRemote;
use engine::tenant::storage_layer::ImageLayerWriter;
use engine::tenant::timeline::{NewTimeline, Origin, Timeline};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use postgres_formats::version::PgVersion;
pub use simulated::model::{Change, IMPORT_LSN, Model, is_page, keys, put_record, version};
use simulated::model::{marker, unused};
use utils::id::{TenantId, TimelineId};

pub fn context() -> RequestContext {
    RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error)
}

/// Settings that spread even small histories over several layers, compact these into many small ones, and rebuild pages
/// with several records in pieces.
pub fn config(workdir: &Utf8Path, checkpoint_distance: u64) -> &'static PageServerConf {
    let common = PageServerConf::dummy_conf(workdir.to_owned());
    let compaction = CompactionPolicy {
        l0_layers: 2,
        l0_layers_max: 4,
        file_bytes: 20_000,
        height: 2,
        // Half of the runs have merges more often, as images come late.
        image_percent: if checkpoint_distance.is_multiple_of(2) { 100 } else { 100_000 },
        fold_percent: 10,
        thin_after: Duration::ZERO,
        spare_percent: 0,
        records: 3,
        job_bytes: 200_000,
        job_bytes_max: u64::MAX,
        // Windows of a few versions, and images of two pages at once.
        memory: 60_000,
        l0_slow: 0,
        l0_wait: 0,
    };
    // What is kept is up to the tests: nothing by its age.
    let retention = RetentionPolicy { pitr_interval: Duration::ZERO, gc_horizon: 64, ..RetentionPolicy::ON_REQUEST };
    // A quarter of the runs copy layers, from memory or, where there is too little, from their files.
    let (copied_layer_min, ephemeral_memory) = if checkpoint_distance % 4 < 3 { (u64::MAX, 0) } else { (0, 20_000) };
    let own = PageServerConf { checkpoint_distance, rebuild_bytes: 100, compaction, retention, ..common };
    let conf = PageServerConf { copied_layer_min, ephemeral_memory, ..own };
    conf.resources.kept.set_limit(ephemeral_memory);
    Box::leak(Box::new(conf))
}

/// What the model says of the keys in use.
#[derive(Debug)]
pub struct ModelKeys;

impl LiveKeys for ModelKeys {
    fn of<'a>(&'a self, values: &'a dyn Values) -> Answer<'a, KeySpace> {
        Box::pin(async {
            let found = values.get_many(&KeySpace::single(marker()..marker().next())).await?;
            let unused = unused(found.get(&marker()));
            let mut live = KeySpace::single(Key::MIN..Key::MAX);
            live.subtract(&KeySpace::from_ranges(unused.into_iter().map(|key| key..key.next()).collect()));
            Ok(live)
        })
    }
}

pub fn new_timeline() -> NewTimeline {
    NewTimeline {
        tenant_shard_id: TenantShardId::unsharded(TenantId::generate()),
        timeline_id: TimelineId::generate(),
        origin: Origin::of_initdb(PgVersion::V15, 7, IMPORT_LSN),
        prev_record_lsn: IMPORT_LSN - 8,
    }
}

/// Creates a timeline whose import has some of the keys, in two image layers, and its model.
pub async fn import(conf: &'static PageServerConf, new: NewTimeline) -> anyhow::Result<(Timeline, Model)> {
    import_with(conf, new, None).await
}

/// As [`import`], for a tenant in a bucket.
pub async fn import_with(
    conf: &'static PageServerConf,
    new: NewTimeline,
    remote: Option<Arc<TenantRemote>>,
) -> anyhow::Result<(Timeline, Model)> {
    let ctx = context();
    let (tenant, timeline) = (new.tenant_shard_id, new.timeline_id);
    Timeline::prepare(conf, tenant, timeline).await?;
    let mut model = Model::default();
    let middle = Key { field1: 3, ..Key::MIN };
    let mut layers = Vec::new();
    for range in [Key::MIN..middle, middle..Key::MAX] {
        let mut writer = ImageLayerWriter::create(conf, timeline, tenant, range.clone(), IMPORT_LSN, &ctx).await?;
        for key in keys().into_iter().filter(|key| range.contains(key)).step_by(2) {
            let image = if is_page(&key) { vec![0x55; 8192] } else { b"imported".to_vec() };
            writer.put_image(key, &image).await?;
            model.put(key, IMPORT_LSN, Value::Image(Bytes::from(image)));
        }
        layers.push(writer.finish(&ctx).await?);
    }
    Ok((Timeline::create_with(conf, new, layers, remote, &ctx).await?, model))
}
