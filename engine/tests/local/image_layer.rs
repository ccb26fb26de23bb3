//! What image layers store of pages that compress and of pages that do not.

use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::storage_layer::ImageLayerWriter;
use engine::tenant::storage_layer::inspect::LayerInspector;
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

const PAGE: usize = 8192;

/// A page of noise, or one of a few bytes.
fn page(number: u32, is_noise: bool) -> Vec<u8> {
    let mut word = u64::from(number) | 1 << 63;
    let mut next = || {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    };
    (0..PAGE / 8).flat_map(|_| if is_noise { next() } else { u64::from(number) }.to_le_bytes()).collect()
}

/// Writes a layer of these pages, verifies it, and returns what it stores, in pages.
async fn stored(noise: &[bool]) -> Result<u64, StorageError> {
    let dir = camino_tempfile::tempdir().expect("a directory");
    let conf: &PageServerConf = Box::leak(Box::new(PageServerConf::dummy_conf(dir.path().to_owned())));
    let (tenant, timeline) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
    Timeline::prepare(conf, tenant, timeline).await?;
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Download);
    let key = |number: u32| Key { field2: 1663, field3: 5, field4: 16384, field6: number, ..Key::MIN };
    let keys = key(0)..key(noise.len() as u32);
    let mut writer = ImageLayerWriter::create(conf, timeline, tenant, keys, Lsn(0x1000), &ctx).await?;
    let before = writer.stored_bytes();
    for (number, is_noise) in (0..).zip(noise) {
        writer.put_image(key(number), &page(number, *is_noise)).await?;
    }
    let stored = (writer.stored_bytes() - before) / PAGE as u64;
    let (_, path) = writer.finish(&ctx).await?;
    let verified = LayerInspector::open(&path).await?.verify().await?;
    assert_eq!(verified.values, noise.len() as u64);
    Ok(stored)
}

#[tokio::test]
async fn pages_that_compress_are_compressed_soon_after_those_that_do_not() -> Result<(), StorageError> {
    let few = stored(&[false; 400]).await?;
    assert!(few <= 12, "{few} pages are stored of 400 that compress");
    let mixed: Vec<bool> = (0..400).map(|number| number % 2 == 0).collect();
    let half = stored(&mixed).await?;
    assert!((200..=212).contains(&half), "{half} pages are stored where 200 of 400 compress");
    let runs: Vec<bool> = (0..400).map(|number| number / 100 % 2 == 0).collect();
    let some = stored(&runs).await?;
    assert!((200..=212 + 2 * 15).contains(&some), "{some} pages are stored where two runs of 100 compress");
    Ok(())
}
