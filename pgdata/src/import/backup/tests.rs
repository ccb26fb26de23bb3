use std::time::Duration;

use pageserver_api::key::rel_block_key;
use postgres_formats::control_file::ClusterState;
use postgres_formats::page::{Page, set_data_checksum};
use tar::{EntryType, Header};
use utils::id::TenantId;

use super::*;
use crate::TimelineStore;
use crate::listing::Listing;
use engine::context::DownloadBehavior;
use engine::task_mgr::TaskKind;
use test_postgres::data_directory::control;

mod budget;

const START: Lsn = Lsn(0x1_0000_0028);
const END: Lsn = Lsn(0x1_0000_9000);
const LARGE_BLOCKS: u32 = (LARGE / PAGE) as u32 + 3;

fn page(blkno: u32) -> [u8; BLCKSZ] {
    let mut page = Page::new([0; BLCKSZ]);
    page.init(0);
    page.set_lsn(u64::from(blkno) + 100);
    let mut bytes = page.into_inner();
    bytes[4000..4004].copy_from_slice(&blkno.to_le_bytes());
    set_data_checksum(&mut bytes, blkno);
    bytes
}

fn pages(count: u32) -> Vec<u8> {
    (0..count).flat_map(page).collect()
}

fn add(archive: &mut Vec<u8>, path: &str, content: &[u8]) {
    let mut header = Header::new_ustar();
    header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
    header.set_size(content.len() as u64);
    header.set_entry_type(EntryType::Regular);
    header.set_cksum();
    archive.extend_from_slice(header.as_bytes());
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(512), 0);
}

/// A small cluster with one large relation whose file grew by half a page while it was being copied.
fn base(large: &[u8]) -> Vec<u8> {
    let mut archive = Vec::new();
    let label = format!("START WAL LOCATION: {START} (file 000000010000000100000000)\nCHECKPOINT LOCATION: {START}\n");
    add(&mut archive, "backup_label", label.as_bytes());
    add(&mut archive, "PG_VERSION", b"15\n");
    add(&mut archive, "base/5/16384", large);
    add(&mut archive, "base/5/16385", &pages(2));
    // Unlogged: its init fork comes last.
    add(&mut archive, "base/5/16390", &pages(LARGE_BLOCKS));
    add(&mut archive, "base/5/16390_init", &pages(1));
    // Segment 0 was not yet full when it was copied.
    add(&mut archive, "base/5/16395", &pages(3));
    add(&mut archive, "base/5/16395.1", &pages(LARGE_BLOCKS));
    add(&mut archive, "base/5/t3_16400", &[1; 100]);
    add(&mut archive, "pg_xact/0000", &[7; 8192 + 4096]);
    add(&mut archive, "global/pg_control", &control(ClusterState::InProduction).encode());
    archive.resize(archive.len() + 1024, 0);
    archive
}

struct World {
    _work: camino_tempfile::Utf8TempDir,
    conf: &'static PageServerConf,
    ctx: RequestContext,
    tenant: TenantShardId,
    id: TimelineId,
}

impl World {
    fn new() -> Self {
        let work = camino_tempfile::tempdir().unwrap();
        let conf = PageServerConf {
            checkpoint_timeout: Duration::from_secs(3600),
            ..PageServerConf::dummy_conf(work.path().to_owned())
        };
        let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
        let (tenant, id) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
        Self { _work: work, conf: Box::leak(Box::new(conf)), ctx, tenant, id }
    }

    async fn begin(&self) -> BackupImport {
        let tablespace = |oid: u32| BackupTablespace { oid, path: format!("/ts/{oid}") };
        let start = BackupStart { lsn: START, tablespaces: vec![tablespace(80000), tablespace(70000)] };
        BackupImport::begin(self.conf, self.tenant, self.id, &start, None, &self.ctx).await.unwrap()
    }

    fn dir(&self) -> Utf8PathBuf {
        self.conf.timeline_path(&self.tenant, &self.id)
    }
}

async fn send(
    import: &mut BackupImport,
    name: &str,
    tablespace: Option<u32>,
    bytes: &[u8],
) -> Result<(), StorageError> {
    import.archive(name, tablespace).await?;
    for piece in bytes.chunks(100_001) {
        import.data(Bytes::copy_from_slice(piece)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_becomes_a_timeline_as_it_arrives() {
    let world = World::new();
    let mut import = world.begin().await;
    let mut space = Vec::new();
    add(&mut space, "PG_15_202209061/5/16401", &pages(LARGE_BLOCKS));
    send(&mut import, "70000.tar", Some(70000), &space).await.unwrap();
    send(&mut import, "80000.tar", Some(80000), &[]).await.unwrap();
    let large = [pages(LARGE_BLOCKS), vec![1; 4096]].concat();
    send(&mut import, "base.tar", None, &base(&large)).await.unwrap();
    assert_eq!((import.files(), import.layers()), (12, 4));
    let (timeline, stats) = import.finish(END, &mut |_| {}).await.unwrap();
    // The two layers of the relations, and three around them.
    assert_eq!((stats.layers, stats.forks, stats.slru_pages), (5, 5, 1));
    assert_eq!((timeline.origin().import_lsn, timeline.origin().consistent_lsn), (START, END));
    assert!(std::fs::read_dir(world.dir()).unwrap().count() <= 7, "leftovers");

    let store = TimelineStore::new(timeline.clone(), world.ctx.clone());
    let listing = Listing::new(&store, START);
    let tablespaces = listing.tablespaces().await.unwrap();
    assert_eq!(tablespaces.get(70000).unwrap().path, b"/ts/70000");
    assert_eq!(tablespaces.number(80000).unwrap(), tablespaces.number(70000).unwrap() + 1);
    let in_base = |relnode, forknum| RelTag { spcnode: 1663, dbnode: 5, relnode, forknum };
    let in_space = RelTag { spcnode: tablespaces.number(70000).unwrap(), relnode: 16401, ..in_base(0, 0) };
    for (rel, blocks) in [
        (in_base(16384, 0), Some(LARGE_BLOCKS)),
        (in_base(16385, 0), Some(2)),
        (in_base(16390, 0), None),
        (in_base(16390, 3), Some(1)),
        (in_base(16395, 0), Some(3)),
        (in_space, Some(LARGE_BLOCKS)),
    ] {
        assert_eq!(listing.rel_size(rel).await.unwrap(), blocks, "{rel}");
        let Some(blocks) = blocks else { continue };
        let stored = listing.dense(rel_block_key(rel, 0)..rel_block_key(rel, blocks)).await.unwrap();
        assert!(stored.values().flat_map(|page| page.to_vec()).eq(pages(blocks)), "{rel}");
    }
    drop(store);
    timeline.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_or_missing_stops_the_import() {
    let mut wrong_page = pages(LARGE_BLOCKS);
    wrong_page[8192 + 5000] ^= 1;
    let whole = base(&pages(LARGE_BLOCKS));
    let mut other_start = whole.clone();
    other_start[512 + 20] = b'7';
    let no_control = &whole[..whole.len() - 1024 - 512 - 8192];
    for (archive, expected) in [
        (base(&wrong_page), "base/5/16384 at offset 8192: page checksum"),
        (whole[..whole.len() / 2].to_vec(), "base.tar at offset"),
        (other_start, "backup_label says that it starts at"),
        (no_control.to_vec(), "it is not complete: "),
    ] {
        let world = World::new();
        let mut import = world.begin().await;
        send(&mut import, "base.tar", None, &archive).await.unwrap();
        let error = import.finish(END, &mut |_| {}).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        assert!(engine::tenant::list_timelines(world.conf).await.unwrap().is_empty());
        // The next attempt is not affected by leftovers.
        let mut again = world.begin().await;
        send(&mut again, "base.tar", None, &whole[..whole.len() / 2]).await.unwrap();
        again.abort().await.unwrap();
        assert!(!world.dir().exists());
    }
}
