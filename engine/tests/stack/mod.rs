//! Shared parts of the layer stack tests: a model of history, which is a map, and timelines to compare with it.
// Each test binary uses only some of it.
#![allow(dead_code, reason = "shared by several test binaries")]

use std::collections::BTreeMap;
use std::ops::Range;
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
use pageserver_api::key::{Key, SPARSE_FIRST, slru_block_key};
use pageserver_api::keyspace::KeySpace;
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::SlruKind;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use postgres_formats::version::PgVersion;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// Where history begins.
pub const IMPORT_LSN: Lsn = Lsn(0x1000);

/// Transactions per `pg_xact` page.
const XACTS_PER_PAGE: u32 = 32768;

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
    let conf = PageServerConf { checkpoint_distance, rebuild_bytes: 100, compaction, retention, ..common };
    Box::leak(Box::new(conf))
}

/// The keys of the model: six pages of the commit log and six single values, two of them sparse.
pub fn keys() -> Vec<Key> {
    let pages = (0..6).map(|page| slru_block_key(SlruKind::Clog, 0, page));
    let files = (0..4).map(|n| Key { field1: 3, field6: 10 + n, ..Key::MIN });
    let sparse = (0..2).map(|n| Key { field1: SPARSE_FIRST, field6: 5 * n, ..Key::MIN });
    pages.chain(files).chain(sparse).collect()
}

/// The key whose value says which pages are not in use.
fn marker() -> Key {
    Key { field1: SPARSE_FIRST, ..Key::MIN }
}

/// The pages that are not in use, by the marker's value.
fn unused(value: Option<&Bytes>) -> Vec<Key> {
    let bits = value.and_then(|value| value.first()).filter(|bits| **bits < 96).map_or(0, |bits| bits % 64);
    (0..6).filter(|page| bits >> page & 1 == 1).map(|page| slru_block_key(SlruKind::Clog, 0, page)).collect()
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

pub fn is_page(key: &Key) -> bool {
    key.to_slru_block().is_some()
}

/// All versions of all keys.
#[derive(Clone, Debug, Default)]
pub struct Model {
    versions: BTreeMap<Key, BTreeMap<Lsn, Value>>,
}

impl Model {
    pub fn put(&mut self, key: Key, lsn: Lsn, value: Value) {
        self.versions.entry(key).or_default().insert(lsn, value);
    }

    /// Whether the key has an image that changes can build on.
    pub fn exists(&self, key: &Key) -> bool {
        self.versions.get(key).is_some_and(|versions| !versions.is_empty())
    }

    /// The value of `key` as of `lsn`.
    pub fn value(&self, key: &Key, lsn: Lsn) -> Option<Bytes> {
        let mut value: Option<Vec<u8>> = None;
        for (_, version) in self.versions.get(key)?.range(..=lsn) {
            match version {
                Value::Image(image) => value = Some(image.to_vec()),
                Value::WalRecord(record) => apply(value.as_mut()?, key, record),
            }
        }
        value.map(Bytes::from)
    }

    /// All values of keys in `range` as of `lsn`.
    pub fn values(&self, range: &Range<Key>, lsn: Lsn) -> BTreeMap<Key, Bytes> {
        let keys = self.versions.range(range.clone()).map(|(key, _)| *key);
        keys.filter_map(|key| Some((key, self.value(&key, lsn)?))).collect()
    }

    /// The pages that are not in use as of `lsn`.
    pub fn unused(&self, lsn: Lsn) -> Vec<Key> {
        unused(self.value(&marker(), lsn).as_ref())
    }

    /// Drops everything above `lsn`, as a crash does.
    pub fn truncate(&mut self, lsn: Lsn) {
        self.versions.values_mut().for_each(|versions| versions.retain(|at, _| *at <= lsn));
    }

    /// Every LSN at which something changed.
    pub fn lsns(&self) -> Vec<Lsn> {
        let mut lsns: Vec<Lsn> = self.versions.values().flat_map(|versions| versions.keys().copied()).collect();
        lsns.sort_unstable();
        lsns.dedup();
        lsns
    }
}

/// The model's own implementation of commit log records.
fn apply(page: &mut [u8], key: &Key, record: &WalRecord) {
    let (xids, bits) = match record {
        WalRecord::ClogSetCommitted { xids, .. } => (xids, 1),
        WalRecord::ClogSetAborted { xids } => (xids, 2),
        other => panic!("the model knows nothing of {other:?}"),
    };
    let (_, _, page_number) = key.to_slru_block().expect("a page of the transaction log");
    for xid in xids {
        assert_eq!(xid / XACTS_PER_PAGE, page_number);
        let (byte, shift) = ((xid % XACTS_PER_PAGE / 4) as usize, xid % 4 * 2);
        page[byte] = page[byte] & !(3 << shift) | bits << shift;
    }
}

/// A change drawn by a test: a key number, and a seed for what happens to it.
pub type Change = (usize, u32);

/// The version that `change` creates, given the model's state.
pub fn version(model: &Model, change: Change) -> (Key, Value) {
    let all = keys();
    let (number, seed) = change;
    let key = all[number % all.len()];
    if !is_page(&key) {
        return (key, Value::Image(Bytes::from(vec![seed as u8; seed as usize % 300])));
    }
    if !model.exists(&key) || seed.is_multiple_of(4) {
        return (key, Value::Image(Bytes::from(vec![seed as u8; 8192])));
    }
    let (_, _, page) = key.to_slru_block().expect("a page");
    let xids = (0..1 + seed % 3).map(|n| page * XACTS_PER_PAGE + (seed / 7 + n * 5) % XACTS_PER_PAGE).collect();
    let record = match seed % 2 {
        0 => WalRecord::ClogSetCommitted { xids, timestamp: i64::from(seed) },
        _ => WalRecord::ClogSetAborted { xids },
    };
    (key, Value::WalRecord(record))
}

/// Puts one record's changes at `lsn` into the batch and the model. A key changes at most once per record. Pages that
/// are in use again get an image.
pub fn put_record(model: &mut Model, batch: &mut SerializedValueBatch, lsn: Lsn, changes: &[Change]) {
    let mut seen = Vec::new();
    let unused_before = model.unused(Lsn::MAX);
    // First, so that the image of a page comes before its changes.
    let (markers, others): (Vec<_>, Vec<_>) = changes.iter().map(|change| version(model, *change)).partition(is_marker);
    let mut values: Vec<(Key, Value)> = markers.into_iter().take(1).collect();
    if let Some((_, Value::Image(value))) = values.first() {
        let unused_now = unused(Some(value));
        let again = unused_before.into_iter().filter(|key| !unused_now.contains(key));
        let images: Vec<_> = again.map(|key| (key, Value::Image(Bytes::from(vec![lsn.0 as u8; 8192])))).collect();
        values.extend(images);
    }
    for (key, value) in values.into_iter().chain(others) {
        if !seen.contains(&key) {
            seen.push(key);
            batch.put_key(&key, lsn, &value).expect("serializable");
            model.put(key, lsn, value);
        }
    }
}

fn is_marker((key, _): &(Key, Value)) -> bool {
    *key == marker()
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
