//! Whatever the journal said was durable is there after a crash at any moment, and nothing else than what came in.

use std::time::Duration;

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use errors::StorageError;
use journal::{Id, Journal, Lane, Need, Options};
use simulated::disk::SimDisk;
use simulated::platter::Survival;
use simulated::random::Random;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::shard::TenantShardId;
use virtual_file::{FatalAction, set_fatal_action};

const OPTIONS: Options = Options { segment_bytes: 64 << 10, bytes: 256 << 10, pending_bytes: 50_000 };
/// Longer than any delay of a journal that works.
const PATIENCE: Duration = Duration::from_secs(5);

/// The WAL of a timeline as it should be.
struct Model {
    id: Id,
    begins: Lsn,
    bytes: Vec<u8>,
    /// Durable in the journal,
    told: Lsn,
    /// and in layers.
    layers: Lsn,
}

impl Model {
    fn new(number: u8) -> Self {
        let tenant = TenantShardId::unsharded(TenantId::from([number; 16]));
        let begins = Lsn(u64::from(number) << 20);
        Self {
            id: Id { tenant, timeline: TimelineId::from([7; 16]) },
            begins,
            bytes: Vec::new(),
            told: begins,
            layers: begins,
        }
    }

    fn end(&self) -> Lsn {
        self.begins + self.bytes.len() as u64
    }

    fn cut(&mut self, end: Lsn) {
        self.bytes.truncate((end.0 - self.begins.0) as usize);
        self.told = self.told.min(end);
    }

    /// What a start needs to go on from layers.
    fn needed_from(&self) -> Lsn {
        self.layers.page_start().max(self.begins)
    }

    /// Compares with what the journal has, which is the truth from now on where it was not promised.
    async fn check(&mut self, lane: &Lane, what: &str) {
        let (mut replay, mut next) = (lane.replay(self.needed_from()), self.needed_from());
        while let Some((start, bytes)) = replay.next().await.unwrap() {
            assert_eq!(start, next, "{what}");
            let at = (start.0 - self.begins.0) as usize;
            let expected = self.bytes.get(at..at + bytes.len());
            assert!(expected == Some(&bytes[..]), "{what}: other bytes at {start} of {:?}", self.id);
            next = start + bytes.len() as u64;
        }
        assert!(next >= self.told, "{what}: {:?} ends at {next}, and was durable to {}", self.id, self.told);
        self.cut(next.max(self.layers));
        self.told = self.end();
    }
}

/// Waits until the journal has everything. False if the disk does not work any more.
async fn wait(lane: &Lane, end: Lsn) -> bool {
    let mut watch = lane.watch();
    let reached = env::clock::timeout(PATIENCE, watch.wait_for(|synced| *synced >= end)).await;
    matches!(reached, Ok(Ok(_)))
}

/// A process, until the disk stops it or it has done enough.
async fn live(dir: &Utf8Path, models: &mut [Model], random: &mut Random, what: &str) {
    let Ok(journal) = Journal::open(dir, OPTIONS).await else { return };
    let lanes: Vec<Lane> = models.iter().map(|model| journal.lane(model.id)).collect();
    for (model, lane) in models.iter_mut().zip(&lanes) {
        model.check(lane, what).await;
    }
    for _ in 0..40 {
        let number = random.below(models.len() as u64) as usize;
        let (model, lane) = (&mut models[number], &lanes[number]);
        match random.below(12) {
            0 => {
                let lsn = Lsn(model.layers.0 + random.below(model.end().0 - model.layers.0 + 1));
                // Whether it has happened is not known if it fails.
                model.told = model.told.min(lsn);
                if !matches!(env::clock::timeout(PATIENCE, lane.void(lsn)).await, Ok(Ok(()))) {
                    break;
                }
                model.cut(lsn);
            }
            1 | 2 => {
                if !wait(lane, model.end()).await {
                    break;
                }
                model.told = model.end();
            }
            3 => {
                let told = lane.synced().min(model.end());
                model.told = told.max(model.told);
                model.layers = Lsn(model.layers.0 + random.below(model.told.0 - model.layers.0 + 1));
                if random.coin() {
                    model.layers = model.told;
                }
            }
            4 | 5 => {
                let need = |id: &Id| match models.iter().find(|model| model.id == *id) {
                    Some(model) => Need::From(model.layers),
                    None => Need::Nothing,
                };
                if !matches!(env::clock::timeout(PATIENCE, journal.trim(need)).await, Ok(Ok(_))) {
                    break;
                }
            }
            _ => {
                if env::clock::timeout(PATIENCE, lane.room()).await.is_err() {
                    // Too much is kept, or the disk has stopped.
                    continue;
                }
                let longest = if random.below(4) == 0 { 40_000 } else { 3000 };
                let len = 1 + random.below(longest) as usize;
                let wal = random.bytes(len);
                lane.append(model.end(), Bytes::from(wal.clone()));
                model.bytes.extend(wal);
            }
        }
    }
    if random.coin() {
        let _ = env::clock::timeout(PATIENCE, journal.shutdown()).await;
    }
}

fn in_a_process(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(work);
}

#[test]
fn what_was_told_survives_a_crash_at_any_moment() {
    set_fatal_action(FatalAction::Report);
    let dir = Utf8PathBuf::from("/simulated/journal-crashes");
    let (mut crashes, mut most) = (0, 0);
    for seed in 0..400 {
        let (mut random, mut models) = (Random::new(seed), [1, 2, 3].map(Model::new));
        let mut disk = SimDisk::new(&dir);
        for life in 0..5 {
            let what = format!("seed {seed}, life {life}");
            let mounted = disk.mount();
            // So that something is on its way while other things happen.
            if seed % 2 == 0 {
                disk.delay_calls(random.next(), Duration::from_millis(3));
            }
            if random.below(4) > 0 {
                disk.crash_in(random.below(60) as usize);
            }
            in_a_process(live(&dir, &mut models, &mut random, &what));
            drop(mounted);
            crashes += u32::from(disk.crashed());
            most = most.max(disk.platter().files().len());
            let survival = match random.below(3) {
                0 => Survival::Synced,
                1 => Survival::Everything,
                _ => Survival::Torn(random.next()),
            };
            disk = SimDisk::of(&dir, disk.survivor(survival));
        }
    }
    println!("{crashes} crashes in 2000 lives; at most {most} files");
    assert!(crashes > 500 && most > 5);
}

#[test]
fn all_who_wait_share_a_sync() {
    let dir = Utf8PathBuf::from("/simulated/journal-shared");
    let disk = SimDisk::new(&dir);
    let _mounted = disk.mount();
    in_a_process(async {
        let journal = Journal::open(&dir, OPTIONS).await.unwrap();
        let lanes: Vec<Lane> = (1..=16).map(|number| journal.lane(Model::new(number).id)).collect();
        for commit in 0..4 {
            lanes.iter().for_each(|lane| lane.append(Lsn(1000 + commit * 100), Bytes::from(vec![1; 100])));
        }
        for lane in &lanes {
            assert!(wait(lane, Lsn(1400)).await);
        }
        let stats = journal.stats();
        assert_eq!(stats.frames, 64);
        assert!(stats.syncs <= 2, "{stats:?}");
    });
}

#[test]
fn who_waits_for_room_waits_until_files_have_gone() {
    let dir = Utf8PathBuf::from("/simulated/journal-full");
    let disk = SimDisk::new(&dir);
    let _mounted = disk.mount();
    in_a_process(async {
        let journal = Journal::open(&dir, OPTIONS).await.unwrap();
        let (lane, mut end) = (journal.lane(Model::new(1).id), Lsn(1 << 20));
        assert!(env::clock::timeout(PATIENCE, journal.crowded()).await.is_err());
        while env::clock::timeout(PATIENCE, lane.room()).await.is_ok() {
            lane.append(end, Bytes::from(vec![1; 10_000]));
            end += 10_000u64;
            assert!(wait(&lane, end).await);
        }
        journal.crowded().await;
        let in_use = |bytes: u64| u64::from(OPTIONS.segment_bytes) * journal.stats().segments <= bytes;
        assert!(!in_use(OPTIONS.bytes) && in_use(OPTIONS.bytes * 2), "{:?}", journal.stats());
        // Whoever needs it all is asked to need less.
        let pins = journal.trim(|_| Need::From(Lsn(1 << 20))).await.unwrap();
        assert_eq!(pins, [Model::new(1).id]);
        let (waited, trimmed) =
            tokio::join!(env::clock::timeout(PATIENCE, lane.room()), journal.trim(|_| Need::From(end)),);
        assert!(waited.is_ok() && trimmed.unwrap().is_empty());
        assert!(in_use(OPTIONS.bytes), "{:?}", journal.stats());
    });
}

/// Layers have all of a timeline, so its last page is journaled once more, while more of it is on its way.
#[test]
fn a_page_that_is_carried_replaces_nothing_that_follows() {
    let dir = Utf8PathBuf::from("/simulated/journal-carried");
    for delay in 0..40 {
        let disk = SimDisk::new(&dir);
        disk.delay_calls(delay, Duration::from_millis(4));
        let _mounted = disk.mount();
        in_a_process(async {
            let journal = Journal::open(&dir, OPTIONS).await.unwrap();
            let (one, other, begins) = (Model::new(1).id, Model::new(2).id, Lsn(1 << 20));
            let (lane, filler) = (journal.lane(one), journal.lane(other));
            lane.append(begins, Bytes::from(vec![1; 1000]));
            assert!(wait(&lane, begins + 1000u64).await);
            filler.append(begins, Bytes::from(vec![2; 100_000]));
            assert!(wait(&filler, begins + 100_000u64).await);
            let need = |id: &Id| if *id == one { Need::From(begins + 1000u64) } else { Need::Nothing };
            let more = async {
                env::clock::sleep(Duration::from_millis(delay)).await;
                lane.append(begins + 1000u64, Bytes::from(vec![3; 500]));
            };
            let (trimmed, ()) = tokio::join!(journal.trim(need), more);
            trimmed.unwrap();
            assert!(wait(&lane, begins + 1500u64).await);
            journal.trim(need).await.unwrap();
            assert_eq!(lane.replay(begins).end(), Some(begins + 1500u64), "appended after {delay} ms");
        });
    }
}

#[test]
fn nobody_waits_for_a_journal_that_has_ended() {
    let dir = Utf8PathBuf::from("/simulated/journal-ended");
    let disk = SimDisk::new(&dir);
    let _mounted = disk.mount();
    in_a_process(async {
        let journal = Journal::open(&dir, OPTIONS).await.unwrap();
        let lane = journal.lane(Model::new(1).id);
        lane.append(Lsn(1000), Bytes::from(vec![1; 100]));
        journal.shutdown().await;
        assert_eq!(lane.synced(), Lsn(1100), "what was pending is written first");
        let void = env::clock::timeout(PATIENCE, lane.void(Lsn(1050))).await;
        assert!(matches!(void, Ok(Err(StorageError::Shutdown))), "{void:?}");
    });
}

#[test]
fn what_is_forgotten_does_not_come_back() {
    let dir = Utf8PathBuf::from("/simulated/journal-forgotten");
    let disk = SimDisk::new(&dir);
    let _mounted = disk.mount();
    let (one, other) = (Model::new(1), Model::new(2));
    let add = async |lane: &Lane, start: Lsn| {
        lane.append(start, Bytes::from(vec![1; 100]));
        wait(lane, start + 100).await
    };
    in_a_process(async {
        let journal = Journal::open(&dir, OPTIONS).await.unwrap();
        let (lane, spared) = (journal.lane(one.id), journal.lane(other.id));
        assert!(add(&lane, Lsn(1000)).await && add(&spared, Lsn(1000)).await);
        journal.forget_tenant(one.id.tenant).await.unwrap();
        // Whoever received for the former life of the tenant may not know yet.
        assert!(!add(&lane, Lsn(1000)).await);
        assert_eq!(lane.replay(Lsn(1000)).end(), None);
        assert!(add(&spared, Lsn(1100)).await);
        // Its next life has WAL of its own.
        assert!(add(&journal.lane(one.id), Lsn(1050)).await);
        journal.shutdown().await;
    });
    in_a_process(async {
        let journal = Journal::open(&dir, OPTIONS).await.unwrap();
        let end = |model: &Model, from| journal.lane(model.id).replay(Lsn(from)).end();
        assert_eq!((end(&one, 1000), end(&one, 1050)), (None, Some(Lsn(1150))));
        assert_eq!(end(&other, 1000), Some(Lsn(1200)));
    });
}

#[test]
fn damage_is_reported_and_ends_only_what_it_concerns() {
    let dir = Utf8PathBuf::from("/simulated/journal-damage");
    let disk = SimDisk::new(&dir);
    let mounted = disk.mount();
    let ids = [1, 2].map(|number| Model::new(number).id);
    in_a_process(async {
        let journal = Journal::open(&dir, OPTIONS).await.unwrap();
        let lanes = ids.map(|id| journal.lane(id));
        for number in 0..6 {
            let lane = &lanes[number % 2];
            let start = Lsn(1000 * (number as u64 / 2 + 1));
            lane.append(start, Bytes::from(vec![number as u8; 1000]));
            assert!(wait(lane, start + 1000).await);
        }
        journal.shutdown().await;
    });
    drop(mounted);
    // The third batch: the second piece of the first timeline.
    let first = disk.platter().files().into_iter().find(|path| path.as_str().ends_with("0001")).unwrap();
    disk.damage(&first, |bytes| bytes[4096 * 3 + 500] ^= 1);
    let before = metrics::METRICS.journal_damages.get();
    let _mounted = disk.mount();
    in_a_process(async {
        let journal = Journal::open(&dir, OPTIONS).await.unwrap();
        let ends = ids.map(|id| journal.lane(id).replay(Lsn(1000)).end());
        assert_eq!(ends, [Some(Lsn(2000)), Some(Lsn(4000))]);
    });
    assert_eq!(metrics::METRICS.journal_damages.get(), before + 1);
}
