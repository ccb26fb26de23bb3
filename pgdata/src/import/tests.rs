use std::time::Duration;

use pageserver_api::key::{rel_block_key, slru_block_key, twophase_file_key};
use pageserver_api::reltag::{RelTag, SlruKind};
use postgres_formats::control_file::ClusterState;
use postgres_formats::page::{Page, set_data_checksum};
use utils::id::TenantId;

use super::*;
use crate::TimelineStore;
use crate::listing::Listing;
use engine::context::DownloadBehavior;
use engine::task_mgr::TaskKind;
use test_postgres::data_directory::{control, data_dir};

const BLOCKS: u32 = 300;

/// An incompressible page of a cluster with checksums.
fn page(blkno: u32) -> [u8; 8192] {
    let mut page = Page::new([0; 8192]);
    page.init(0);
    page.set_lsn(u64::from(blkno) + 100);
    let mut bytes = page.into_inner();
    let mut state = blkno.wrapping_mul(0x9E37_79B9) | 1;
    for byte in &mut bytes[24..] {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        *byte = state as u8;
    }
    set_data_checksum(&mut bytes, blkno);
    bytes
}

#[tokio::test(flavor = "multi_thread")]
async fn every_page_is_found_again_in_layers_of_any_size() {
    let source = data_dir(&control(ClusterState::Shutdowned).encode());
    let relation: Vec<u8> = (0..BLOCKS).flat_map(page).collect();
    std::fs::write(source.path().join("base/5/16384"), &relation).unwrap();
    std::fs::write(source.path().join("base/5/16385"), []).unwrap();
    std::fs::write(source.path().join("pg_xact/0000"), [7; 2 * 8192]).unwrap();
    std::fs::create_dir(source.path().join("pg_twophase")).unwrap();
    let state = postgres_formats::twophase::state_file(b"what was prepared");
    std::fs::write(source.path().join("pg_twophase/000002C1"), state).unwrap();
    let data = DataDir::open(source.path()).unwrap();

    for (layer_bytes, layers) in [(256 << 20, 1..=1), (300_000, 8..=10), (1, 300..=400)] {
        let work = camino_tempfile::tempdir().unwrap();
        let conf = PageServerConf {
            checkpoint_timeout: Duration::from_secs(3600),
            ..PageServerConf::dummy_conf(work.path().to_owned())
        };
        let conf: &'static PageServerConf = Box::leak(Box::new(conf));
        let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
        let (tenant, id) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
        let mut calls = 0;
        let mut progress = |_: &ImportStats| calls += 1;
        let made = import_in_layers(conf, tenant, id, &data, Some(layer_bytes), &mut progress, &ctx).await;
        let (timeline, stats) = made.unwrap();
        assert_eq!((stats.forks, stats.pages, stats.slru_pages), (2, 300, 2));
        assert!(layers.contains(&stats.layers), "{} layers", stats.layers);
        assert!(calls > 2);

        let store = TimelineStore::new(timeline.clone(), ctx.clone());
        let listing = Listing::new(&store, data.start_lsn().unwrap());
        let rel = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 };
        assert_eq!(listing.rel_size(rel).await.unwrap(), Some(BLOCKS));
        assert_eq!(listing.relations(1663, 5).await.unwrap().len(), 2);
        let pages = listing.dense(rel_block_key(rel, 0)..rel_block_key(rel, BLOCKS)).await.unwrap();
        assert_eq!(pages.values().flat_map(|page| page.to_vec()).collect::<Vec<_>>(), relation);
        assert_eq!(listing.slru_segments(SlruKind::Clog).await.unwrap().into_values().collect::<Vec<_>>(), [2]);
        assert_eq!(listing.required(slru_block_key(SlruKind::Clog, 0, 1)).await.unwrap(), [7; 8192][..]);
        assert_eq!(listing.required(twophase_file_key(0x2C1)).await.unwrap(), "what was prepared");
        assert_eq!(listing.tablespaces().await.unwrap().number(70000).unwrap(), 0xF000);
        drop(store);
        timeline.shutdown().await;
    }
}

#[tokio::test]
async fn a_damaged_page_stops_the_import_and_leaves_no_timeline() {
    let source = data_dir(&control(ClusterState::Shutdowned).encode());
    let mut relation: Vec<u8> = (0..3).flat_map(page).collect();
    relation[8192 + 5000] ^= 1;
    std::fs::write(source.path().join("base/5/16384"), &relation).unwrap();
    let work = camino_tempfile::tempdir().unwrap();
    let conf: &'static PageServerConf = Box::leak(Box::new(PageServerConf::dummy_conf(work.path().to_owned())));
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    let data = DataDir::open(source.path()).unwrap();
    let (tenant, id) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
    let error = import(conf, tenant, id, &data, &mut |_| {}, &ctx).await.unwrap_err().to_string();
    assert!(error.contains("base/5/16384 at offset 8192: page checksum"), "{error}");
    assert!(engine::tenant::list_timelines(conf).await.unwrap().is_empty());
}
