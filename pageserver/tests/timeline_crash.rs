//! Power cuts before every durable effect of a scripted history, and a full disk at every effect.

mod stack;

use std::future::Future;
use std::sync::Mutex;

use camino::Utf8PathBuf;
use pageserver::config::PageServerConf;
use pageserver::errors::{ErrorKind, StorageError};
use pageserver::tenant::find_single_timeline;
use pageserver::tenant::timeline::Timeline;
use pageserver::virtual_file::{self, FatalAction, simulated};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use stack::disk::{Disk, Survival, Trouble};
use stack::{Change, IMPORT_LSN, Model, config, context, import, new_timeline, put_record};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

const RECORDS: u32 = 120;
const FLUSH_EVERY: u32 = 17;
/// Small enough that layers are rolled on their own between the flushes.
const CHECKPOINT_DISTANCE: u64 = 30_000;

/// A sync error ends the process unless told otherwise: for the tests of this binary it is an error like others.
fn in_runtime<T>(work: impl Future<Output = T>) -> T {
    virtual_file::set_fatal_action(FatalAction::Report);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

fn mounted(disk: &Disk) -> (simulated::Mounted, &'static PageServerConf) {
    // Files keep their full paths, so that every disk of this process is found at the same place, one at a time.
    let root = Utf8PathBuf::from("/simulated-disk");
    (simulated::mount(root.clone(), std::sync::Arc::new(disk.clone())), config(&root, CHECKPOINT_DISTANCE))
}

/// Disks are mounted one at a time.
static MOUNT: Mutex<()> = Mutex::new(());

/// What a run knows of itself when the power goes.
#[derive(Default)]
struct Progress {
    model: Model,
    imported: bool,
    /// The largest LSN that was reported as durable.
    durable: Lsn,
    /// The LSNs at which records end.
    ends: Vec<Lsn>,
}

fn changes(record: u32) -> Vec<Change> {
    (0..1 + record % 3).map(|n| ((record * 5 + n * 7) as usize % 12, record * 2_654_435 + n * 40_503)).collect()
}

fn lsn_of(record: u32) -> Lsn {
    IMPORT_LSN + 8 * (1 + u64::from(record))
}

/// Runs `step` again while it finds no room, at most `tries` times.
async fn insist<T, F: Future<Output = Result<T, StorageError>>>(
    tries: u32,
    mut step: impl FnMut() -> F,
) -> Result<T, StorageError> {
    let mut left = tries;
    loop {
        match step().await {
            Err(error) if left > 0 && error.kind() == ErrorKind::Retry => left -= 1,
            other => return other,
        }
    }
}

/// Puts the records from `first` on, each on its own, with a flush now and then.
async fn write(timeline: &Timeline, progress: &mut Progress, first: u32, tries: u32) -> Result<(), StorageError> {
    let ctx = context();
    for record in first..RECORDS {
        let mut batch = SerializedValueBatch::default();
        put_record(&mut progress.model, &mut batch, lsn_of(record), &changes(record));
        insist(tries, || timeline.put_batch(batch.clone(), &ctx)).await?;
        timeline.finish_write(lsn_of(record), lsn_of(record) - 8);
        progress.ends.push(lsn_of(record));
        progress.durable = progress.durable.max(timeline.disk_consistent_lsn());
        if record % FLUSH_EVERY == FLUSH_EVERY - 1 || record == RECORDS - 1 {
            insist(tries, || timeline.flush(&ctx)).await?;
            progress.durable = lsn_of(record);
            assert_eq!(timeline.disk_consistent_lsn(), lsn_of(record));
        }
        // Lets a flush in the background come in between.
        tokio::task::yield_now().await;
    }
    Ok(())
}

async fn check_all(timeline: &Timeline, model: &Model, what: &str) {
    let everything = KeySpace::single(Key::MIN..Key::MAX);
    let lsns: Vec<Lsn> = model.lsns().into_iter().filter(|lsn| *lsn <= timeline.last_record_lsn()).collect();
    // From the newest down: every third is enough to meet every layer.
    for lsn in lsns.into_iter().rev().step_by(3) {
        let found = timeline.get_vectored(&everything, lsn, &context()).await;
        let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
        let found: Vec<_> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
        let expected: Vec<_> = model.values(&(Key::MIN..Key::MAX), lsn).into_iter().collect();
        assert!(found == expected, "{what}: at LSN {lsn}");
    }
}

/// One run up to a power cut before effect `at`. Also says whether the run ended before that.
fn run_until(at: u64) -> (Disk, Progress, bool) {
    let disk = Disk::new(Trouble::PowerCut(at));
    let (_mounted, conf) = mounted(&disk);
    let mut progress = Progress::default();
    let ended = in_runtime(async {
        let Ok((timeline, model)) = import(conf, new_timeline()).await else { return false };
        progress = Progress { model, imported: true, durable: IMPORT_LSN, ends: vec![IMPORT_LSN] };
        write(&timeline, &mut progress, 0, 0).await.is_ok()
    });
    assert_eq!(ended, !disk.is_dead());
    (disk, progress, ended)
}

/// Opens what a power cut left, compares it with the model, and goes on to the end of the script.
fn recover(disk: &Disk, progress: &Progress, what: &str) {
    let (_mounted, conf) = mounted(disk);
    in_runtime(async {
        let (tenant, id) = match find_single_timeline(conf).await {
            Ok(ids) => ids,
            Err(error) => return assert!(!progress.imported, "{what}: {error}"),
        };
        let timeline = Timeline::open(conf, tenant, id, &context()).await.unwrap_or_else(|e| panic!("{what}: {e}"));
        let last = timeline.last_record_lsn();
        assert!(last >= progress.durable, "{what}: {} was reported durable, {last} is there", progress.durable);
        assert!(!progress.imported || progress.ends.contains(&last) || last == lsn_of(progress.ends.len() as u32 - 1));
        let mut model = progress.model.clone();
        if progress.imported {
            check_all(&timeline, &model, what).await;
        }
        let leftovers = disk.names().len() - 1 - timeline.info().layers;
        assert_eq!(leftovers, 0, "{what}: {:?}", disk.names());
        if progress.imported {
            model.truncate(last);
            let first = ((last.0 - IMPORT_LSN.0) / 8) as u32;
            let mut again = Progress { model, ..Progress::default() };
            write(&timeline, &mut again, first, 0).await.unwrap();
            check_all(&timeline, &again.model, what).await;
        }
        timeline.shutdown().await;
    });
}

#[test]
fn a_power_cut_before_any_effect_loses_nothing_that_was_durable() {
    let _mount = MOUNT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (mut points, mut recoveries) = (0, 0);
    loop {
        let (disk, progress, ended) = run_until(points);
        for survival in [Survival::Synced, Survival::All, Survival::Random(points), Survival::Random(!points)] {
            let what = format!("power cut before effect {points}, {survival:?}");
            recover(&disk.after_power_cut(survival, Trouble::None), &progress, &what);
            recoveries += 1;
        }
        if ended {
            break;
        }
        points += 1;
    }
    println!("{points} points of power cut, {recoveries} recoveries");
    assert!(points > 100);
}

#[test]
fn a_power_cut_during_recovery_loses_nothing() {
    let _mount = MOUNT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let total = run_until(u64::MAX).0.effects();
    let mut cuts = 0;
    for at in 0..total {
        let (disk, progress, _) = run_until(at);
        if !progress.imported {
            continue;
        }
        for second in 0.. {
            let found = disk.after_power_cut(Survival::All, Trouble::PowerCut(second));
            open_once(&found);
            if !found.is_dead() {
                break;
            }
            let what = format!("power cut before effect {at}, then before effect {second} of recovery");
            recover(&found.after_power_cut(Survival::Random(second), Trouble::None), &progress, &what);
            cuts += 1;
        }
    }
    println!("{cuts} power cuts during recovery");
    assert!(cuts > 50);
}

fn open_once(disk: &Disk) {
    let (_mounted, conf) = mounted(disk);
    in_runtime(async {
        if let Ok((tenant, id)) = find_single_timeline(conf).await {
            let _ = Timeline::open(conf, tenant, id, &context()).await;
        }
    });
}

#[test]
fn a_full_disk_at_any_effect_loses_nothing_and_can_be_retried() {
    let _mount = MOUNT.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let imported = {
        let disk = Disk::new(Trouble::None);
        let (_mounted, conf) = mounted(&disk);
        in_runtime(async { import(conf, new_timeline()).await.map(drop) }).unwrap();
        disk.effects()
    };
    let total = run_until(u64::MAX).0.effects();
    let mut refused = 0;
    for at in imported..total {
        for count in [1, 3] {
            refused += u64::from(full_at(at, count));
        }
    }
    println!("{} points, {refused} histories with a refused effect", total - imported);
    assert!(refused > 100);
}

/// One history with `count` effects from `at` on refused. Whether any was.
fn full_at(at: u64, count: u64) -> bool {
    let disk = Disk::new(Trouble::NoSpace(at, count));
    let (_mounted, conf) = mounted(&disk);
    in_runtime(async {
        let (timeline, model) = import(conf, new_timeline()).await.unwrap();
        let mut progress = Progress { model, imported: true, durable: IMPORT_LSN, ends: Vec::new() };
        let written = write(&timeline, &mut progress, 0, 10).await;
        written.unwrap_or_else(|error| panic!("no space at effect {at} x {count}: {error}"));
        check_all(&timeline, &progress.model, &format!("no space at effect {at} x {count}")).await;
        let info = timeline.info();
        timeline.shutdown().await;
        let ids = (info.tenant_shard_id, info.timeline_id);
        let timeline = Timeline::open(conf, ids.0, ids.1, &context()).await.unwrap();
        assert_eq!(timeline.last_record_lsn(), lsn_of(RECORDS - 1));
        check_all(&timeline, &progress.model, &format!("reopened, no space at effect {at} x {count}")).await;
        timeline.shutdown().await;
    });
    disk.effects() > at
}
