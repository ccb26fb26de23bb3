//! A tenant with one timeline, whose relations are images of one layer.

use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::TenantManager;
use engine::tenant::storage_layer::ImageLayerWriter;
use engine::tenant::timeline::{NewTimeline, Origin, Timeline};
use pageserver_api::key::{DBDIR_KEY, Key, rel_block_key, rel_entry_key, rel_size_key};
use pageserver_api::reltag::RelTag;
use pageserver_api::shard::TenantShardId;
use pgdata::directory::{DbDir, EXISTS, encode, encode_size};
use postgres_formats::version::PgVersion;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

/// Where the history begins.
pub const IMPORT_LSN: Lsn = Lsn(0x1000);

/// Main forks of database 5 of the default tablespace, ascending, each of so many pages.
pub async fn import(
    conf: &'static PageServerConf,
    relations: &[RelTag],
    pages: u32,
    page: impl Fn(RelTag, u32) -> Vec<u8>,
) -> anyhow::Result<(TenantManager, Timeline)> {
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    let manager = TenantManager::load(conf).await?;
    let tenant_shard_id = TenantShardId::unsharded(TenantId::generate());
    let timeline_id = TimelineId::generate();
    Timeline::prepare(conf, tenant_shard_id, timeline_id).await?;
    let keys = Key::MIN..Key::MAX;
    let mut writer = ImageLayerWriter::create(conf, timeline_id, tenant_shard_id, keys, IMPORT_LSN, &ctx).await?;
    writer.put_image(DBDIR_KEY, &encode(&DbDir::from([((1663, 5), false)]))).await?;
    for rel in relations {
        for block in 0..pages {
            writer.put_image(rel_block_key(*rel, block), &page(*rel, block)).await?;
        }
        writer.put_image(rel_size_key(*rel), &encode_size(pages)).await?;
    }
    for rel in relations {
        writer.put_image(rel_entry_key(*rel), EXISTS).await?;
    }
    let layer = writer.finish(&ctx).await?;
    let origin = Origin::of_initdb(PgVersion::V15, 7, IMPORT_LSN);
    let new = NewTimeline { tenant_shard_id, timeline_id, origin, prev_record_lsn: Lsn::INVALID };
    let timeline = Timeline::create(conf, new, vec![layer], &ctx).await?;
    manager.add(timeline.clone()).await?;
    Ok((manager, timeline))
}
