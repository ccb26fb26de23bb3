use std::ffi::OsStr;
use std::sync::atomic::AtomicU32;

use super::*;
use crate::index_scan::tests::leaf;
use crate::layout::Layout;
use crate::manifest;
use crate::overlay::tree::ROOT;
use crate::source::{RelFork, RelationFile};

const REL: RelFork = RelFork { spc: 1663, db: 5, rel: 10, fork: 0 };
const INDEX: RelFork = RelFork { rel: 11, ..REL };
const BLOCKS: u32 = 1024;
/// What the index leads to: keys, and blocks of the table.
const ROWS: [(u64, u32); 6] = [(1, 20), (1, 700), (1, 90), (2, 300), (2, 8), (3, 400)];

/// Answers only when permitted, and counts how many requests waited at once.
struct Gate {
    open: Semaphore,
    waiting: AtomicU32,
    failures: AtomicU32,
}

impl PageSource for Arc<Gate> {
    async fn manifest(&self) -> Result<Vec<RelationFile>, SourceError> {
        Ok(Vec::new())
    }

    async fn read_blocks(&self, rel: RelFork, first: u32, _: u32, out: &mut [u8]) -> Result<(), SourceError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let _open = self.open.acquire().await;
        if self.failures.load(Ordering::SeqCst) > 0 {
            self.failures.fetch_sub(1, Ordering::SeqCst);
            return Err(SourceError::Retry("not now".into()));
        }
        if first >= BLOCKS - 1 {
            return Err(SourceError::Gone("lease 7 would have kept it".into()));
        }
        for (block, out) in (first..).zip(out.chunks_exact_mut(BLOCK)) {
            match rel == INDEX {
                true => out.copy_from_slice(&leaf(&ROWS)[..]),
                false => out.fill(block as u8),
            }
        }
        Ok(())
    }
}

struct World {
    _dir: camino_tempfile::Utf8TempDir,
    gate: Arc<Gate>,
    volume: Arc<Volume<Arc<Gate>>>,
    file: Arc<FileNode>,
    index: Arc<FileNode>,
}

fn world(open: usize) -> World {
    let dir = camino_tempfile::tempdir().unwrap();
    let layout = Layout::new(dir.path());
    std::fs::create_dir_all(layout.upper()).unwrap();
    let files = [("10", REL), ("11", INDEX)].map(|(path, rel)| RelationFile { path: path.into(), rel, blocks: BLOCKS });
    manifest::write(&layout.manifest(), &files).unwrap();
    let gate = Gate { open: Semaphore::new(open), waiting: AtomicU32::new(0), failures: AtomicU32::new(0) };
    let gate = Arc::new(gate);
    let overlay = Overlay::open_at(&layout, false).unwrap();
    let id = |name| overlay.lookup(ROOT, OsStr::new(name)).unwrap().unwrap().id;
    let [file, index] = ["10", "11"].map(|name| overlay.file(id(name)).unwrap());
    let policy = Policy { in_flight: 40, ..Policy::default() };
    let volume = Volume::new(overlay, Arc::clone(&gate), policy);
    World { _dir: dir, gate, volume, file, index }
}

async fn read(world: &World, block: u32, count: u32) -> io::Result<Vec<u8>> {
    read_of(world, &world.file, block, count).await
}

async fn read_of(world: &World, file: &Arc<FileNode>, block: u32, count: u32) -> io::Result<Vec<u8>> {
    let (offset, size) = (u64::from(block) * BLOCK as u64, count as usize * BLOCK);
    match world.volume.begin_read(file, offset, size)? {
        Ok(data) => Ok(data),
        Err(pending) => world.volume.finish_read(file, pending).await,
    }
}

async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_block_is_fetched_once_however_many_wait() {
    let world = world(0);
    let reads = (0..20).map(|_| read(&world, 500, 2));
    let all = futures_join(reads.collect());
    let release = async {
        until(|| world.gate.waiting.load(Ordering::SeqCst) > 0).await;
        world.gate.open.add_permits(1);
    };
    let (results, ()) = tokio::join!(all, release);
    assert!(results.iter().all(|data| data.as_ref().unwrap()[BLOCK] == 501_u32 as u8));
    assert_eq!(world.volume.counts.requests.load(Ordering::SeqCst), 1);
    until(|| !world.volume.is_busy()).await;
    assert_eq!(read(&world, 501, 1).await.unwrap()[0], 501_u32 as u8);
    assert_eq!(world.volume.counts.requests.load(Ordering::SeqCst), 1, "it is in the overlay now");
}

#[tokio::test]
async fn forty_are_under_way_at_once() {
    let world = world(0);
    // Far apart, so that no scan is detected.
    let reads: Vec<_> = (0..60).map(|at| read(&world, (at * 613) % 1000, 1)).collect();
    let release = async {
        until(|| world.gate.waiting.load(Ordering::SeqCst) == 40).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
        let at_once = world.gate.waiting.load(Ordering::SeqCst);
        world.gate.open.add_permits(1);
        at_once
    };
    let (results, at_once) = tokio::join!(futures_join(reads), release);
    assert_eq!(at_once, 40);
    assert!(results.iter().all(Result::is_ok));
}

#[tokio::test]
async fn a_scan_is_fetched_in_pieces_and_ahead() {
    let world = world(8);
    for at in 0..60 {
        assert_eq!(read(&world, at * 16, 16).await.unwrap()[0], (at * 16) as u8);
    }
    until(|| !world.volume.is_busy()).await;
    let requests = world.volume.counts.requests.load(Ordering::SeqCst);
    assert!(requests <= 12, "960 blocks took {requests} requests");
    let blocks = world.volume.counts.blocks.load(Ordering::SeqCst);
    assert!((960..=1024).contains(&blocks), "{blocks} blocks were fetched");
}

#[tokio::test]
async fn what_comes_back_by_itself_is_waited_for() {
    let world = world(1);
    world.gate.failures.store(3, Ordering::SeqCst);
    assert_eq!(read(&world, 3, 1).await.unwrap()[0], 3);
    assert_eq!(world.volume.counts.requests.load(Ordering::SeqCst), 4);
}

#[tokio::test]
async fn what_is_gone_is_an_error_and_is_asked_again() {
    let world = world(1);
    for requests in 1..=2 {
        let error = read(&world, BLOCKS - 1, 1).await.unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::IO));
        assert_eq!(world.volume.counts.requests.load(Ordering::SeqCst), requests);
    }
    assert_eq!(read(&world, 5, 1).await.unwrap()[0], 5);
}

/// A block is written while it is being fetched: the written data must survive.
#[tokio::test]
async fn a_late_fetch_does_not_overwrite() {
    let world = world(0);
    let late = read(&world, 7, 2);
    let write = async {
        until(|| world.gate.waiting.load(Ordering::SeqCst) > 0).await;
        world.volume.write(&world.file, 7 * BLOCK as u64, &[99; BLOCK]).await.unwrap();
        world.gate.open.add_permits(1);
    };
    let (seen, ()) = tokio::join!(late, write);
    let seen = seen.unwrap();
    assert_eq!((seen[0], seen[BLOCK]), (99, 8));
    until(|| !world.volume.is_busy()).await;
    let seen = read(&world, 7, 2).await.unwrap();
    assert_eq!((seen[0], seen[BLOCK]), (99, 8));
}

/// Runs all futures concurrently in this task.
async fn futures_join<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut futures: Vec<_> = futures.into_iter().map(|future| (Box::pin(future), None)).collect();
    std::future::poll_fn(|context| {
        let mut all = true;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(context) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => all = false,
                }
            }
        }
        if all { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
    futures.into_iter().filter_map(|(_, output)| output).collect()
}

#[tokio::test]
async fn what_an_index_leads_to_is_fetched_together() {
    let world = world(1);
    // Once as it comes from the source, and once from the overlay.
    for (first, key) in [(20, [700, 90].as_slice()), (300, &[8])] {
        read_of(&world, &world.index, 1, 1).await.unwrap();
        let before = world.volume.counts.requests.load(Ordering::SeqCst);
        assert_eq!(read(&world, first, 1).await.unwrap()[0], first as u8);
        until(|| !world.volume.is_busy()).await;
        let all = before + 1 + key.len() as u64;
        assert_eq!(world.volume.counts.requests.load(Ordering::SeqCst), all, "each row's page was asked for");
        for block in key {
            assert_eq!(read(&world, *block, 1).await.unwrap()[0], *block as u8);
        }
        assert_eq!(world.volume.counts.requests.load(Ordering::SeqCst), all, "they are here");
    }
}
