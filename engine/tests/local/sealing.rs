//! How in-memory layers become files: with their values where they are, or with a copy of all in order.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use bytes::Bytes;
use camino::Utf8Path;
use camino_tempfile::Utf8TempDir;
use engine::config::{CompactionPolicy, PageServerConf};
use engine::context::{DownloadBehavior, RequestContext};
use engine::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use engine::task_mgr::TaskKind;
use engine::tenant::storage_layer::inspect::LayerInspector;
use engine::tenant::storage_layer::{DeltaLayer, InMemoryLayer, ReconstructState};
use engine::tenant::timeline::Timeline;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::record::WalRecord;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use proptest::prelude::*;
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::sync::gate::Gate;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::stack;

type Put = (u32, u64, Value);

fn key(number: u32) -> Key {
    Key { field2: 1663, field3: 5, field4: 16384, field6: number, ..Key::MIN }
}

fn record(number: u64, len: usize) -> Value {
    let record = (number..).flat_map(u64::to_le_bytes).take(len).collect::<Vec<u8>>().into();
    Value::WalRecord(WalRecord::Postgres { will_init: false, block_id: 0, record })
}

fn image(number: u64, len: usize) -> Value {
    Value::Image(Bytes::from(vec![number as u8; len]))
}

/// A layer that was sealed.
struct Sealed {
    /// Whether its values were copied, so that the in-memory layer's own file was still there.
    copied: bool,
    /// Bytes of that file that were written.
    own_bytes: u64,
    file_size: u64,
    value_bytes: u64,
    /// Values in memory when it was sealed.
    kept: u64,
}

/// Puts `values` into a layer that may keep `memory` bytes of them, seals it, and compares what each key reads.
async fn seal(memory: u64, values: &[Put]) -> anyhow::Result<Sealed> {
    let sealed = seal_from(memory, 0, false, values).await?;
    let held = seal_from(memory, 0, true, values).await?;
    assert_eq!((held.copied, held.file_size), (sealed.copied, sealed.file_size));
    assert!(held.own_bytes == 0 || sealed.kept == 0, "the own file was written, and not needed: {}", held.own_bytes);
    Ok(sealed)
}

/// The same with layers that are not copied if they have less than `copied_min` bytes. With `holds` their own file is
/// written as late as possible.
async fn seal_from(memory: u64, copied_min: u64, holds: bool, values: &[Put]) -> anyhow::Result<Sealed> {
    let dir: Utf8TempDir = camino_tempfile::tempdir()?;
    let mut conf = PageServerConf::dummy_conf(dir.path().to_owned());
    (conf.ephemeral_memory, conf.copied_layer_min) = (memory, copied_min);
    let conf: &PageServerConf = Box::leak(Box::new(conf));
    conf.configure_caches();
    let (tenant, timeline) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
    Timeline::prepare(conf, tenant, timeline).await?;
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Download);
    let (gate, cancel) = (Gate::default(), CancellationToken::new());
    let layer = InMemoryLayer::create(conf, timeline, tenant, Lsn(8), &gate, &cancel, &ctx).await?;
    if holds {
        layer.hold_writes().await;
    }
    let mut expected: BTreeMap<Key, BTreeMap<u64, &Value>> = BTreeMap::new();
    for (number, lsn, value) in values {
        let mut batch = SerializedValueBatch::default();
        batch.put_key(&key(*number), Lsn(*lsn), value)?;
        layer.put_batch(batch, &ctx).await?;
        expected.entry(key(*number)).or_default().insert(*lsn, value);
    }
    let end = Lsn(values.iter().map(|(_, lsn, _)| *lsn).max().unwrap_or(8) + 1);
    layer.freeze(end).await;
    let flush = L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency: NonZeroUsize::MIN });
    let written = layer.write_to_disk(&ctx, None, flush.inner(), &gate, cancel).await?;
    let (desc, path) = written.expect("the layer has values");

    let sealed = DeltaLayer::open(&path, &desc, &Default::default(), &ctx).await?;
    for (key, versions) in &expected {
        let mut state = ReconstructState::default();
        let keyspace = KeySpace::from_ranges(vec![*key..key.next()]);
        sealed.get_values_reconstruct_data(&keyspace, Lsn(8)..end, &mut state, &ctx).await?;
        let mut found = BTreeMap::new();
        for (_, history) in state.into_histories() {
            found.extend(history.records.into_iter().map(|(lsn, record)| (lsn.0, Value::WalRecord(record))));
            found.extend(history.image.map(|(lsn, image)| (lsn.0, Value::Image(image))));
        }
        let needed = versions.iter().rev().map(|(lsn, value)| (*lsn, (*value).clone()));
        let mut wanted = BTreeMap::new();
        for (lsn, value) in needed {
            let is_last = value.will_init();
            wanted.insert(lsn, value);
            if is_last {
                break;
            }
        }
        assert!(found == wanted, "{key:?}: {:?} instead of {:?}", found.keys(), wanted.keys());
    }
    let verified = LayerInspector::open(&path).await?.verify().await?;
    assert_eq!(verified.values as usize, expected.values().map(BTreeMap::len).sum::<usize>());

    let mut own = None;
    for entry in path.parent().expect("in a directory").read_dir_utf8()? {
        let entry = entry?;
        if entry.file_name().starts_with("ephemeral-") {
            own = Some(entry.metadata()?.len());
        }
    }
    let (copied, own_bytes) = (own.is_some(), own.unwrap_or(0));
    let (kept, value_bytes) = (conf.resources.kept.used(), layer.size());
    drop(layer);
    assert_eq!(conf.resources.kept.used(), 0, "what the layer had is not given back");
    Ok(Sealed { copied, own_bytes, file_size: desc.file_size, value_bytes, kept })
}

/// Records of pages in turn, each of which has `rounds` of them, after an image of each.
fn scattered(pages: u32, rounds: u64) -> Vec<Put> {
    let mut values = Vec::new();
    for round in 0..=rounds {
        for page in 0..pages {
            let lsn = 8 + values.len() as u64 * 8;
            let value = if round == 0 { image(u64::from(page), 3000) } else { record(lsn, 70 + page as usize % 90) };
            values.push((page, lsn, value));
        }
    }
    values
}

/// The bytes of an index of so many values are few.
fn has_no_dead_bytes(sealed: &Sealed, values: usize) -> bool {
    sealed.file_size < sealed.value_bytes * 101 / 100 + values as u64 * 32 + (64 << 10)
}

#[tokio::test]
async fn values_that_are_scattered_are_copied_from_memory_or_from_the_file() -> anyhow::Result<()> {
    let values = scattered(3000, 20);
    let from_memory = seal(1 << 30, &values).await?;
    assert!(from_memory.copied && from_memory.kept > 0, "{}", from_memory.kept);
    assert!(from_memory.own_bytes > 0, "without being told so nothing is held back");
    let from_file = seal(0, &values).await?;
    assert!(from_file.copied && from_file.kept == 0);
    let half = seal(from_memory.kept / 2, &values).await?;
    assert!(half.copied && half.kept == 0, "half a layer is of no use: {}", half.kept);
    for sealed in [from_memory, from_file, half] {
        assert!(has_no_dead_bytes(&sealed, values.len()), "{} for {}", sealed.file_size, sealed.value_bytes);
    }
    Ok(())
}

/// Bytes in the file of the open layer of a timeline, whose directory is `dir`.
fn open_layer_bytes(dir: &Utf8Path) -> anyhow::Result<u64> {
    let files: Vec<_> = dir.read_dir_utf8()?.collect::<std::io::Result<_>>()?;
    let mut own = files.iter().filter(|entry| entry.file_name().starts_with("ephemeral-"));
    let (Some(open), None) = (own.next(), own.next()) else { anyhow::bail!("not one open layer: {files:?}") };
    Ok(open.metadata()?.len())
}

#[tokio::test]
async fn a_layer_is_written_when_memory_ends_or_if_the_one_before_was_no_copy() -> anyhow::Result<()> {
    let dir: Utf8TempDir = camino_tempfile::tempdir()?;
    let common = stack::config(dir.path(), 1 << 30);
    let compaction = CompactionPolicy { l0_layers: 0, ..common.compaction.clone() };
    // Its first two layers fit into memory, its third one does not.
    let conf = PageServerConf { copied_layer_min: 0, ephemeral_memory: 8 << 20, compaction, ..common.clone() };
    let conf: &PageServerConf = Box::leak(Box::new(conf));
    conf.configure_caches();
    let (timeline, _) = stack::import(conf, stack::new_timeline()).await?;
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Download);
    let put_all = async |rounds: u64| {
        for (number, _, value) in scattered(500, rounds) {
            let last = timeline.last_record_lsn();
            let mut batch = SerializedValueBatch::default();
            batch.put_key(&key(number), last + 8, &value)?;
            timeline.put_batch(batch, &ctx).await?;
            timeline.finish_write(last + 8, last);
        }
        anyhow::Ok(())
    };
    let own = conf.timeline_path(&timeline.tenant_shard_id(), &timeline.timeline_id());
    let mut found = Vec::new();
    for rounds in [20, 20, 200] {
        put_all(rounds).await?;
        found.push(open_layer_bytes(&own)?);
        timeline.flush(&ctx).await?;
    }
    assert_eq!(found[..2], [0, 0], "their own files are not needed: {found:?}");
    assert!(found[2] > 8 << 20, "there was no memory for that: {found:?}");
    put_all(20).await?;
    assert!(open_layer_bytes(&own)? > 1 << 20, "the one before was no copy out of memory");
    timeline.shutdown().await;
    Ok(())
}

#[tokio::test]
async fn a_load_in_order_stays_where_it_is_and_one_hot_page_in_it_is_moved() -> anyhow::Result<()> {
    let mut values = Vec::new();
    for page in 0..1500u32 {
        let lsn = 16 + u64::from(page) * 16;
        values.push((10 + page, lsn, image(lsn, 8192)));
        if page % 20 == 0 {
            values.push((1, lsn + 8, record(lsn, 120)));
        }
    }
    for memory in [0, 1 << 30] {
        let sealed = seal(memory, &values).await?;
        assert!(!sealed.copied, "a load that is in order was written twice");
        assert!(has_no_dead_bytes(&sealed, values.len()));
    }
    Ok(())
}

#[tokio::test]
async fn images_alone_stay_where_they_are() -> anyhow::Result<()> {
    let place = |number: u32| (number.wrapping_mul(2_654_435_761) % 997, 8 + u64::from(number) * 8);
    let values: Vec<Put> = (0..997).map(place).map(|(page, lsn)| (page, lsn, image(lsn, 5000))).collect();
    assert!(!seal(1 << 30, &values).await?.copied, "a read needs one of them, wherever it is");
    Ok(())
}

#[tokio::test]
async fn a_small_layer_stays_where_it_is() -> anyhow::Result<()> {
    let values = scattered(300, 20);
    let bytes = seal(0, &values).await?.value_bytes;
    assert!(seal_from(0, bytes, false, &values).await?.copied);
    for holds in [false, true] {
        assert!(!seal_from(1 << 30, bytes + 1, holds, &values).await?.copied);
    }
    Ok(())
}

#[tokio::test]
async fn values_longer_than_a_buffer_are_copied_whole() -> anyhow::Result<()> {
    let mut values = scattered(600, 6);
    let mut lsn = values.len() as u64 * 8 + 8;
    for (page, len) in [(7, 5 << 20), (3, 9 << 20), (7, 100), (900, (4 << 20) - 1), (3, 1)] {
        values.push((page, lsn, record(lsn, len)));
        lsn += 8;
    }
    // The long values are few, but without them the others would be copied for sure.
    let values: Vec<Put> =
        values.into_iter().chain((0..40_000).map(|n| (n % 997, lsn + u64::from(n) * 8, record(1, 60)))).collect();
    for memory in [0, 1 << 30] {
        assert!(seal(memory, &values).await?.copied);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Whatever arrives, in whichever order, is what is read: also where a later value has the LSN of an earlier one.
    #[test]
    fn what_is_sealed_is_what_was_put(
        puts in prop::collection::vec((0..30u32, 0..3u64, prop::bool::weighted(0.2), 1..9000usize), 1..300),
        memory in prop::sample::select(vec![0u64, 1 << 18, 1 << 30]),
    ) {
        let (mut lsn, mut values) = (8, Vec::new());
        for (number, (page, step, is_image, len)) in puts.into_iter().enumerate() {
            lsn += step * 8;
            let number = number as u64;
            values.push((page, lsn, if is_image { image(number, len) } else { record(number, len) }));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(seal(memory, &values)).unwrap();
    }
}
