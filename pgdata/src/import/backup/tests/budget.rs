//! Backups larger than the disk budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use camino::Utf8Path;
use camino_tempfile::{Utf8TempDir, tempdir};
use object_store::local::LocalFileSystem;

use super::*;
use engine::tenant::manager::TenantManager;
use remote_storage::{RemoteOptions, RemoteStorage};

const MIB: u64 = 1 << 20;
const BUDGET: u64 = 16 * MIB;
const BLOCKS: u32 = (6 * BUDGET / PAGE) as u32;
const REL: RelTag = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 };

/// A page that does not compress.
fn noise(blkno: u32) -> [u8; BLCKSZ] {
    let mut bytes = page(blkno);
    let mut word = u64::from(blkno).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for piece in bytes[64..].as_chunks_mut::<8>().0 {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        *piece = word.to_le_bytes();
    }
    set_data_checksum(&mut bytes, blkno);
    bytes
}

struct Served {
    dir: Utf8TempDir,
    bucket: Utf8TempDir,
    manager: TenantManager,
    tenant: TenantShardId,
    id: TimelineId,
    most: Arc<AtomicU64>,
    watching: Arc<AtomicBool>,
}

async fn serve(dir: &Utf8Path, bucket: Option<&Utf8Path>) -> TenantManager {
    let storage = bucket.map(|bucket| {
        let store = Arc::new(LocalFileSystem::new_with_prefix(bucket).unwrap());
        let options = RemoteOptions { retry_deadline: Duration::from_millis(100), ..RemoteOptions::default() };
        RemoteStorage::with_options(store, "test://bucket", options)
    });
    let conf = PageServerConf {
        disk_budget_bytes: BUDGET,
        remote_storage: storage,
        ..PageServerConf::dummy_conf(dir.to_owned())
    };
    let conf = Box::leak(Box::new(conf));
    let manager = TenantManager::load(conf).await.unwrap();
    while conf.disk_budget.measured().is_none() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    manager
}

fn on_disk(dir: &Utf8Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(stat) if stat.is_dir() => on_disk(Utf8Path::from_path(&entry.path()).unwrap()),
        Ok(stat) => stat.blocks() * 512,
        Err(_) => 0,
    };
    entries.filter_map(Result::ok).map(size).sum()
}

impl Served {
    async fn new(with_bucket: bool) -> Self {
        let (dir, bucket) = (tempdir().unwrap(), tempdir().unwrap());
        let manager = serve(dir.path(), with_bucket.then_some(bucket.path())).await;
        let (tenant, id) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
        manager.create_tenant(tenant).await.unwrap();
        let (most, watching) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(true)));
        let (path, seen, until) = (dir.path().to_owned(), Arc::clone(&most), Arc::clone(&watching));
        std::thread::spawn(move || {
            while until.load(Ordering::Relaxed) {
                // A walk while files come and go may count files that never existed at the same time.
                let bytes = [on_disk(&path), on_disk(&path), on_disk(&path)].into_iter().min();
                seen.fetch_max(bytes.unwrap_or_default(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        Self { dir, bucket, manager, tenant, id, most, watching }
    }

    async fn begin(&self) -> Result<BackupImport, StorageError> {
        let start = BackupStart { lsn: START, tablespaces: Vec::new() };
        let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
        let remote = self.manager.remote_of(self.tenant);
        BackupImport::begin(self.manager.conf(), self.tenant, self.id, &start, remote, &ctx).await
    }

    /// Objects of the timeline.
    fn objects(&self) -> Vec<String> {
        let dir = self.bucket.path().join(format!("tenants/{}/timelines/{}", self.tenant, self.id));
        let names = std::fs::read_dir(dir).into_iter().flatten();
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    fn most(&self) -> u64 {
        self.most.load(Ordering::Relaxed) / MIB
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.watching.store(false, Ordering::Relaxed);
    }
}

fn large() -> Vec<u8> {
    base(&(0..BLOCKS).flat_map(noise).collect::<Vec<u8>>())
}

async fn check(timeline: &Timeline) {
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    for blkno in (0..BLOCKS).step_by(7) {
        let found = timeline.get(rel_block_key(REL, blkno), START, &ctx).await.unwrap();
        assert!(found == noise(blkno)[..], "block {blkno}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn six_times_the_budget_is_imported_through_it() {
    let served = Served::new(true).await;
    let mut import = served.begin().await.unwrap();
    send(&mut import, "base.tar", None, &large()).await.unwrap();
    let (timeline, stats) = import.finish(END, &mut |_| {}).await.unwrap();
    served.manager.add(timeline.clone()).await.unwrap();
    assert!(timeline.wait_uploaded(Duration::from_secs(30)).await);
    let most = served.most();
    println!("{} MiB in {} layers, at most {most} MiB on disk of {}", stats.bytes / MIB, stats.layers, BUDGET / MIB);
    assert!(most <= BUDGET / MIB + 1, "{most} MiB on disk");
    assert_eq!(timeline.layer_files().iter().filter(|layer| !layer.is_remote()).count(), 0);
    check(&timeline).await;
    let names: Vec<String> =
        timeline.layer_files().iter().map(|layer| layer.path().file_name().unwrap().to_owned()).collect();
    let stored = served.objects();
    let others: Vec<&String> = stored.iter().filter(|name| !names.contains(name)).collect();
    assert!(others.len() == 2 && stored.len() == names.len() + 2, "{others:?}");
    assert!(
        others.iter().all(|name| ["index_part-00000001", "origin-00000001"].contains(&name.as_str())),
        "{others:?}"
    );
    drop(timeline);
    served.manager.shutdown().await;
    // First without the disk, then with it.
    let empty = tempdir().unwrap();
    for dir in [empty.path(), empty.path(), served.dir.path()] {
        let again = serve(dir, Some(served.bucket.path())).await;
        let timeline = again.get(served.tenant, served.id).unwrap();
        check(&timeline).await;
        assert_eq!(timeline.origin().consistent_lsn, END);
        drop(timeline);
        again.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_an_import_leaves_in_the_bucket_is_removed() {
    let served = Served::new(true).await;
    let whole = large();
    let mut import = served.begin().await.unwrap();
    send(&mut import, "base.tar", None, &whole[..whole.len() / 2]).await.unwrap();
    assert!(served.objects().len() > 5, "{:?}", served.objects());
    import.abort().await.unwrap();
    let objects = served.objects();
    assert!(matches!(objects.as_slice(), [mark] if mark.starts_with("index_part")), "{objects:?}");

    // A crash: nothing ends the import.
    let mut import = served.begin().await.unwrap();
    send(&mut import, "base.tar", None, &whole[..whole.len() / 2]).await.unwrap();
    assert!(served.objects().len() > 5, "{:?}", served.objects());
    std::mem::forget(import.left());
    drop(import);
    served.manager.shutdown().await;
    let again = serve(served.dir.path(), Some(served.bucket.path())).await;
    assert!(again.get(served.tenant, served.id).is_err());
    let started = std::time::Instant::now();
    while served.objects().len() > 1 {
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", served.objects());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    again.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_bucket_or_while_it_is_away_an_import_ends_within_the_budget() {
    for with_bucket in [false, true] {
        let served = Served::new(with_bucket).await;
        let mut import = served.begin().await.unwrap();
        if with_bucket {
            // Nothing can be written below a path that is a file.
            std::fs::rename(served.bucket.path(), format!("{}-away", served.bucket.path())).unwrap();
            std::fs::write(served.bucket.path(), b"").unwrap();
        }
        let error = send(&mut import, "base.tar", None, &large()).await.unwrap_err();
        println!("{error}; at most {} MiB on disk", served.most());
        let text = error.to_string();
        assert!(matches!(error, StorageError::NoRoom(_)), "{text}");
        assert!(text.contains("the import does not fit") && text.contains("disk_budget"), "{text}");
        assert!(served.most() <= BUDGET / MIB + 1);
        if with_bucket {
            std::fs::remove_file(served.bucket.path()).unwrap();
            std::fs::rename(format!("{}-away", served.bucket.path()), served.bucket.path()).unwrap();
        }
        import.abort().await.unwrap();
        assert_eq!(served.manager.conf().disk_budget.held(), 0);
        served.manager.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeline_that_the_bucket_has_is_not_imported_anew() {
    let served = Served::new(true).await;
    let mut import = served.begin().await.unwrap();
    send(&mut import, "base.tar", None, &base(&pages(LARGE_BLOCKS))).await.unwrap();
    let (timeline, _) = import.finish(END, &mut |_| {}).await.unwrap();
    served.manager.add(timeline.clone()).await.unwrap();
    assert!(timeline.wait_uploaded(Duration::from_secs(30)).await);
    drop(timeline);
    served.manager.shutdown().await;
    // A listing lacked it when another server attached the tenant, which therefore knows nothing of it.
    let empty = tempdir().unwrap();
    let conf = Box::leak(Box::new(PageServerConf::dummy_conf(empty.path().to_owned())));
    let storage = served.manager.conf().remote_storage.clone().unwrap();
    let remote = TenantRemote::attach(storage, served.tenant).await.unwrap();
    let start = BackupStart { lsn: START, tablespaces: Vec::new() };
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    let refused = BackupImport::begin(conf, served.tenant, served.id, &start, Some(remote), &ctx).await;
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("exists already in test://bucket"), "{text}");
}
