//! Two hundred faults of local files while they are being read.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use engine::tenant::scrub::{Kind, Options};
use engine::tenant::timeline::Timeline;
use errors::ErrorKind;
use metrics::METRICS;
use pageserver_api::key::Key;

use crate::stack::{self, IMPORT_LSN};
use crate::world::{World, looking, repairing};

const FAULTS: u64 = 200;
const READERS: u64 = 4;

/// Reads all keys at varying LSNs until stopped. Returns the number of reads, all of them correct.
async fn read_on(world: Arc<World>, timeline: Timeline, number: u64, stop: Arc<AtomicBool>) -> u64 {
    let (lsns, all) = (world.model.lsns(), Key::MIN..Key::MAX);
    let (mut at, mut reads) = (number as usize * 37, 0);
    while !stop.load(Ordering::Relaxed) {
        let lsn = lsns[at % lsns.len()].max(IMPORT_LSN);
        for (key, value) in world.model.values(&all, lsn) {
            let found = timeline.get(key, lsn, &stack::context()).await;
            let found = found.unwrap_or_else(|error| panic!("key {key} at {lsn}: {error}"));
            assert!(found == value, "key {key} at {lsn} differs");
            reads += 1;
        }
        at = at.wrapping_mul(31) + 7;
        tokio::task::yield_now().await;
    }
    reads
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_faults_under_four_readers() {
    let world = Arc::new(World::new().await);
    world.conf.resources.pages.set_keep_rebuilt(false);
    let timeline = world.open().await;
    let stop = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..READERS)
        .map(|number| tokio::spawn(read_on(Arc::clone(&world), timeline.clone(), number, Arc::clone(&stop))))
        .collect();
    let (healed, log) = (METRICS.layers_healed.get(), logged());
    let layers = timeline.layer_files();
    let (mut flipped, mut cut, mut removed) = (0, 0, 0);
    for fault in 0..FAULTS {
        let layer = &layers[fault as usize % layers.len()];
        // The layer is intact and in use again before it is damaged: one fault per layer at a time.
        layer.download(&stack::context()).await.expect("fetched");
        let before = METRICS.layers_healed.get();
        let path = layer.path().to_owned();
        match fault % 3 {
            0 => {
                // Damage all blocks, so that the next read of any block hits the fault.
                let mut bytes = std::fs::read(&path).expect("read");
                bytes.chunks_mut(4096).for_each(|block| block[100 + fault as usize] ^= 1);
                std::fs::write(&path, bytes).expect("written");
                flipped += 1;
            }
            1 => {
                let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
                file.set_len(4096 * (fault % 2)).expect("cut");
                cut += 1;
            }
            _ => {
                // Readers have the file open and continue; a scrub notices that it is missing.
                std::fs::remove_file(&path).expect("removed");
                let repair = Options { repair: true, ..looking() };
                let report = world.scrub_holding(repair, Some(1), vec![timeline.clone()]).await.expect("scrubbed");
                let found: Vec<_> = report.findings.iter().map(|it| (it.kind, it.fixed)).collect();
                assert_eq!(found, [(Kind::Missing, true)], "{report:?}");
                removed += 1;
                continue;
            }
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while METRICS.layers_healed.get() == before {
            assert!(Instant::now() < deadline, "fault {fault} was not noticed: {path}");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    stop.store(true, Ordering::Relaxed);
    let mut reads = 0;
    for reader in readers {
        reads += reader.await.expect("no wrong page");
    }
    let (healed, lines) = (METRICS.layers_healed.get() - healed, logged() - log);
    println!(
        "{FAULTS} faults ({flipped} flipped, {cut} cut, {removed} removed), {reads} reads by {READERS} readers: \
         0 wrong, {healed} healed by reads, {removed} by a scrub, {lines} log lines"
    );
    assert_eq!((healed, lines), (flipped + cut, flipped + cut));
    for layer in &layers {
        layer.download(&stack::context()).await.expect("fetched");
    }
    let report = world.scrub_holding(looking(), Some(1), vec![timeline.clone()]).await.expect("scrubbed");
    assert!(report.findings.is_empty(), "{report:?}");
}

#[tokio::test]
async fn a_damaged_object_is_named_and_never_served() {
    let world = World::new().await;
    let timeline = world.open().await;
    let mut refused = 0;
    for (number, layer) in timeline.layer_files().into_iter().enumerate() {
        let path = world.object(layer.path().file_name().expect("a name"));
        let good = world.get(&path).await;
        // Damage every block, so that any read hits the fault.
        let mut bytes = good.to_vec();
        bytes.chunks_mut(4096).for_each(|block| block[10 + number] ^= 0x40);
        world.put(&path, &bytes).await;
        layer.evict().await.expect("evicted");
        world.conf.resources.blocks.clear_memory();
        for (key, value) in world.model.values(&(Key::MIN..Key::MAX), world.last) {
            match timeline.get(key, world.last, &stack::context()).await {
                Ok(found) => assert!(found == value, "a page of a damaged object was served"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
                    assert!(error.to_string().contains(path.file_name()), "the object is not named: {error}");
                    refused += 1;
                }
            }
        }
        world.put(&path, &good).await;
        layer.download(&stack::context()).await.expect("fetched");
    }
    println!("{refused} reads of damaged objects refused, 0 served");
    assert!(refused > 0);
    world.compare(&timeline, world.last).await;
}

#[tokio::test]
async fn what_was_replaced_is_no_orphan_while_it_is_read() {
    let world = World::new().await;
    let timeline = world.open_to_compact().await;
    // As a read holds them that began before.
    let held = timeline.layer_files();
    timeline.compact().await.expect("compacted");
    let replaced = timeline.graveyard().len();
    assert!(replaced > 0, "nothing was sorted");
    world.publish().await;
    let report = world.scrub_holding(repairing(), Some(1), vec![timeline.clone()]).await.expect("scrubbed");
    assert_eq!(report.count(Kind::Orphan), 0, "{report:?}");
    for layer in &held {
        world.get(&world.object(layer.path().file_name().expect("a name"))).await;
    }
    drop(held);
    timeline.compact().await.expect("swept");
    assert!(timeline.graveyard().is_empty());
    let report = world.scrub_holding(repairing(), Some(1), vec![timeline.clone()]).await.expect("scrubbed");
    assert_eq!(report.count(Kind::Orphan), replaced, "nobody reads them, and nothing here removes them: {report:?}");
    world.compare(&timeline, world.last).await;
}

/// Found by the simulation: a file that a job had removed after it was looked for was said to be missing.
#[tokio::test]
async fn what_is_replaced_during_a_scrub_is_not_missing() {
    const LATENCY: Duration = Duration::from_millis(60);
    let mut ended_later = 0;
    for half in 8..20 {
        let world = World::new().await;
        let timeline = world.open_to_compact().await;
        let before = timeline.layer_files().len();
        world.slow_down(LATENCY);
        let scrub = world.scrub_holding(looking(), Some(1), vec![timeline.clone()]);
        let compact = async {
            tokio::time::sleep(LATENCY / 2 * half).await;
            timeline.compact().await.expect("compacted");
            timeline.tend().await.expect("swept");
            Instant::now()
        };
        let scrub = async { (scrub.await, Instant::now()) };
        let ((report, scrubbed), compacted) = tokio::join!(scrub, compact);
        assert_ne!(timeline.layer_files().len(), before, "nothing was replaced");
        let report = report.expect("scrubbed");
        assert_eq!((report.count(Kind::Missing), &report.lost), (0, &Vec::new()), "after {half} halves: {report:?}");
        ended_later += usize::from(scrubbed > compacted);
        timeline.shutdown().await;
    }
    assert!(ended_later >= 3, "only {ended_later} scrubs took longer than the replacement");
}

static LINES: AtomicU64 = AtomicU64::new(0);

/// Number of log lines that report a useless local file.
fn logged() -> u64 {
    use std::io::Write;
    static ONCE: std::sync::Once = std::sync::Once::new();
    struct Counting;
    impl Write for Counting {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            let text = String::from_utf8_lossy(bytes);
            LINES.fetch_add(text.matches("the local file is of no use").count() as u64, Ordering::Relaxed);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    ONCE.call_once(|| tracing_subscriber::fmt().with_writer(|| Counting).init());
    LINES.load(Ordering::Relaxed)
}
