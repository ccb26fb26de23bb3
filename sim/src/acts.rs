//! What each [`Act`] does to the world.

use std::time::Duration;

use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Limits;
use env::process::Process;
use simulated::disk::{EIO, ENOSPC, Failure, SimDisk};
use simulated::platter::{Effect, Survival};
use simulated::random::Random;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::network::Link;
use crate::plan::{Act, Step};
use crate::reader::{Kept, Promise};
use crate::server::{PATIENCE, context};
use crate::story::{tell, violation};
use crate::weather::break_bucket;
use crate::world::{Known, World};

/// Bytes that a write of a disk has that loses it or takes it elsewhere.
const BLOCK: usize = 4096;
/// How long a fault lasts at most.
const FAULT_SECONDS: u64 = 120;
/// What a server is killed in the middle of.
const CALLS: [Act; 10] = [
    Act::Flush,
    Act::Evict,
    Act::Branch,
    Act::DeleteBranch,
    Act::DetachBranch,
    Act::Hold,
    Act::Release,
    Act::Lease,
    Act::Compact,
    Act::CollectGarbage,
];
/// How long it takes until records are in, and what was written is in the bucket, mostly.
const IN_BUCKET: Duration = Duration::from_secs(1);
/// How long an operator waits for the bucket to have what was asked for.
const UPLOAD: Duration = Duration::from_secs(60);

impl World {
    /// Performs a step.
    pub async fn perform(&mut self, step: &Step) {
        let mut random = Random::new(step.chance);
        env::clock::sleep(step.after).await;
        for server in &self.servers {
            server.tell_of_disk();
            server.disk.delay_calls(random.next(), Duration::from_micros(self.setting.disk_micros));
        }
        tell!(self.story, "{}: {:?}", step.number, step.act);
        self.act(step.act, &mut random).await;
        self.settle_in().await;
        self.delete_again().await;
        self.check_generations();
    }

    async fn act(&mut self, act: Act, random: &mut Random) {
        match act {
            Act::Write => self.write(random),
            Act::Promote => self.promote(random),
            Act::Flush => self.flush(random).await,
            Act::Read => self.read(random).await,
            Act::Evict => self.evict(random).await,
            Act::ReadReplaced => self.read_replaced(random).await,
            Act::Branch => self.branch_somewhere(random).await,
            Act::DeleteBranch => self.delete_some(random).await,
            Act::DetachBranch => self.detach_some(random).await,
            Act::Hold => self.hold(random).await,
            Act::Release => self.release(random).await,
            Act::Lease => self.lease(random).await,
            Act::Compact => self.compact().await,
            Act::CollectGarbage => self.collect_garbage().await,
            Act::Restart | Act::Kill | Act::Crash | Act::LoseDisk => self.end_some(act, random).await,
            Act::KillMeanwhile => self.kill_meanwhile(random).await,
            Act::TakeOver => self.take_over(),
            Act::Pause => self.pause(random),
            Act::SetClock => self.set_clock(random),
            Act::BreakBucket | Act::LoseBucket | Act::FillDisk | Act::FailSync => self.fault(act, random),
            Act::Rot => self.rot(random),
            Act::LagLists => self.lag_lists(random).await,
            Act::Limit => self.limit(random).await,
            Act::Wait => env::clock::sleep(Duration::from_secs(random.below(120))).await,
        }
    }

    /// A server is killed while it does what an operator asks for.
    async fn kill_meanwhile(&mut self, random: &mut Random) {
        let Some(process) = self.owner().process().cloned() else { return };
        let scale = 1 << (10 + random.below(14));
        let after = Duration::from_micros(random.below(scale));
        let act = CALLS[random.below(CALLS.len() as u64) as usize];
        tell!(self.story, "{} is killed after {after:?} of {act:?}", self.owner().name);
        // Whoever reads just now may be told anything.
        self.weather.worsen(after);
        let victim = process.clone();
        drop(env::spawn::task("a kill", async move {
            env::clock::sleep(after).await;
            victim.kill();
        }));
        Box::pin(self.act(act, random)).await;
        // What took less time is over when the kill comes.
        process.kill();
    }

    fn write(&mut self, random: &mut Random) {
        let (id, known) = self.any(random);
        let (count, last) = known.origin.write(random);
        tell!(self.story, "{count} records of {id}, up to {last}");
    }

    fn promote(&mut self, random: &mut Random) {
        let (id, known) = self.any(random);
        if let Some(lsn) = known.origin.promote() {
            tell!(self.story, "whoever writes {id} is on another timeline of Postgres from {lsn} on");
        }
    }

    async fn flush(&mut self, random: &mut Random) {
        let (id, _) = self.any(random);
        self.flush_one(id).await;
    }

    async fn flush_one(&mut self, id: TimelineId) {
        let Some(timeline) = self.timeline(id) else { return };
        let flushed = self.owner().run("flush", PATIENCE, async move {
            let wanted = timeline.last_record_lsn();
            let flushed = timeline.flush(&context()).await;
            (wanted, flushed.map(|()| timeline.disk_consistent_lsn()))
        });
        match flushed.await {
            Some((wanted, Ok(durable))) if durable < wanted => {
                violation!(self.story, "{id} was flushed up to {durable} only, not to {wanted}");
            }
            Some((_, done)) => tell!(self.story, "{id} flushed: {done:?}"),
            None => {}
        }
    }

    async fn read(&mut self, random: &mut Random) {
        let (id, known) = self.any(random);
        // Seldom somebody asks a server that should not have the tenant any more.
        let server = if random.below(5) == 0 { 1 - self.owner } else { self.owner };
        let Some(timeline) = self.servers[server].timeline(self.tenant, id) else { return };
        let subject = self.subject(&known, server);
        let over_network = random.below(3) == 0;
        let link = Link::draw(random);
        let (count, mut random) = (1 + random.below(8), Random::new(random.next()));
        if over_network {
            if let Some(stream) = self.servers[server].connect(link, random.next()) {
                drop(env::spawn::task("client", subject.ask_some(stream, timeline, count, random)));
            }
            return;
        }
        // It goes on while other things happen.
        if let Some(process) = self.servers[server].process() {
            drop(process.enter(|| env::spawn::task("reader", subject.read_some(timeline, count, random))));
        }
    }

    /// Readers of layers that are not on the disk wait for the bucket while jobs replace these layers.
    async fn read_replaced(&mut self, random: &mut Random) {
        let (id, known) = self.any(random);
        self.write_layer(id, &known, random).await;
        env::clock::sleep(IN_BUCKET).await;
        self.evict_from(id).await;
        let (Some(timeline), Some(process)) = (self.timeline(id), self.owner().process().cloned()) else { return };
        let slow = Duration::from_millis(1 + random.below(2_000));
        let bucket = self.owner().bucket.clone();
        bucket.slow_reads(random.next(), slow);
        for number in 0..8 {
            let (subject, begins) = (self.subject(&known, self.owner), slow * number);
            let (timeline, chance) = (timeline.clone(), Random::new(random.next()));
            let reader = async move {
                env::clock::sleep(begins).await;
                subject.read_some(timeline, 2, chance).await;
            };
            drop(process.enter(|| env::spawn::task("reader", reader)));
        }
        tell!(self.story, "reads of {id} from the bucket take up to {slow:?}");
        // Two L0 layers are sorted.
        self.write_layer(id, &known, random).await;
        self.compact().await;
        env::clock::sleep(slow * 8).await;
        bucket.slow_reads(0, Duration::ZERO);
    }

    async fn write_layer(&mut self, id: TimelineId, known: &Known, random: &mut Random) {
        known.origin.write(random);
        env::clock::sleep(IN_BUCKET).await;
        self.flush_one(id).await;
    }

    async fn evict(&mut self, random: &mut Random) {
        let (id, _) = self.any(random);
        self.evict_from(id).await;
    }

    async fn evict_from(&mut self, id: TimelineId) {
        let Some(timeline) = self.timeline(id) else { return };
        let evicted = self.owner().run("eviction", PATIENCE, async move {
            let mut evicted = 0;
            for layer in timeline.layer_files() {
                if layer.is_remote() && layer.is_local() && layer.evict().await.is_ok() {
                    evicted += 1;
                }
            }
            evicted
        });
        let evicted = evicted.await;
        tell!(self.story, "layers of {id} that left the disk: {evicted:?}");
    }

    /// Some moment of a timeline up to the end of what the owner has of it.
    fn some_moment(&self, random: &mut Random) -> Option<(TimelineId, Lsn)> {
        let (id, known) = self.any(random);
        let last = self.timeline(id)?.last_record_lsn();
        let moments = known.origin.all_moments(last);
        // Late ones are not gone as often.
        let from_end = random.below(moments.len() as u64).min(random.below(moments.len() as u64)) as usize;
        Some((id, moments[moments.len() - 1 - from_end]))
    }

    async fn branch_somewhere(&mut self, random: &mut Random) {
        if let Some((id, lsn)) = self.some_moment(random)
            && self.known.len() < 5
        {
            self.branch(id, lsn).await;
        }
    }

    async fn delete_some(&mut self, random: &mut Random) {
        let (id, _) = self.any(random);
        if id != self.root {
            self.delete(id).await;
        }
    }

    async fn detach_some(&mut self, random: &mut Random) {
        let (id, _) = self.any(random);
        let (tenant, Some(manager)) = (self.tenant, self.owner().manager()) else { return };
        let detached =
            self.owner().run("detachment", PATIENCE, async move { manager.detach_timeline(tenant, id).await });
        let detached = detached.await;
        tell!(self.story, "{id} detached from its ancestor: {detached:?}");
    }

    async fn hold(&mut self, random: &mut Random) {
        let Some((id, lsn)) = self.some_moment(random) else { return };
        let name = format!("hold {:x}", random.next());
        self.keep(id, Promise { lsn, name: Some(name), until: None, kept: Kept::Perhaps }).await;
    }

    async fn lease(&mut self, random: &mut Random) {
        let Some((id, lsn)) = self.some_moment(random).filter(|_| self.clocks_agree) else { return };
        let until = env::clock::now() + Duration::from_secs(10 + random.below(600));
        self.keep(id, Promise { lsn, name: None, until: Some(until), kept: Kept::Perhaps }).await;
    }

    /// Asks the owner to keep a moment.
    async fn keep(&mut self, id: TimelineId, promise: Promise) {
        let (Some(timeline), Some(known)) = (self.timeline(id), self.known.get(&id)) else { return };
        let (asked, promises) = (promise.clone(), known.promises.clone());
        promises.lock().push(promise.clone());
        let kept = self.owner().run("keeping", PATIENCE, async move {
            match (&asked.name, asked.until) {
                (Some(name), _) => timeline.hold(name, asked.lsn).await?,
                (None, until) => {
                    let left = until.map(|until| until.saturating_duration_since(env::clock::now()));
                    timeline.lease(asked.lsn, left.unwrap_or_default()).await?;
                }
            }
            Ok::<_, errors::StorageError>(timeline.wait_uploaded(UPLOAD).await)
        });
        let kept = kept.await;
        tell!(self.story, "{id} keeps {}: {kept:?}", promise.lsn);
        let kept = match kept {
            Some(Ok(true)) => Kept::InBucket,
            Some(Ok(false)) => Kept::OnDisk,
            _ => Kept::Perhaps,
        };
        let mut promises = promises.lock();
        let written = promises.iter_mut().rfind(|it| it.lsn == promise.lsn && it.name == promise.name);
        if let Some(written) = written {
            written.kept = kept;
        }
    }

    async fn release(&mut self, random: &mut Random) {
        let (id, known) = self.any(random);
        let held = known.promises.lock().iter().find_map(|promise| promise.name.clone());
        let (Some(timeline), Some(name)) = (self.timeline(id), held) else { return };
        // Whatever comes of it, nobody relies on it any more.
        known.promises.lock().retain(|promise| promise.name.as_ref() != Some(&name));
        let released = self.owner().run("release", PATIENCE, async move { timeline.release(&name).await });
        let released = released.await;
        tell!(self.story, "a hold of {id} is released: {released:?}");
    }

    async fn compact(&mut self) {
        let Some(manager) = self.owner().manager() else { return };
        let done = self.owner().run("compaction", PATIENCE, async move {
            let mut done = Vec::new();
            for timeline in manager.all_timelines() {
                done.push(
                    timeline.compact().await.map(|counts| (counts.sort.jobs, counts.merge.jobs, counts.image.jobs)),
                );
            }
            done
        });
        let done = done.await;
        tell!(self.story, "jobs that sorted, merged and made images: {done:?}");
    }

    async fn collect_garbage(&mut self) {
        let (tenant, Some(manager)) = (self.tenant, self.owner().manager()) else { return };
        let done = self.owner().run("garbage collection", PATIENCE, async move {
            let reports = manager.collect_garbage(tenant, false).await?;
            Ok::<_, ManageError>(reports.iter().map(|it| (it.cutoff, it.removed_layers)).collect::<Vec<_>>())
        });
        let done = done.await;
        tell!(self.story, "cutoffs, and layers that have gone: {done:?}");
    }

    async fn end_some(&mut self, act: Act, random: &mut Random) {
        let number = if random.below(4) == 0 { 1 - self.owner } else { self.owner };
        let is_owner = number == self.owner;
        self.note_said();
        if act == Act::LoseDisk {
            self.forget_said(number);
        }
        let server = &mut self.servers[number];
        if server.is_alive() {
            match act {
                Act::Restart => server.shut_down().await,
                Act::Kill => server.kill(Survival::Everything).await,
                Act::Crash if random.coin() => server.kill(Survival::Synced).await,
                Act::Crash => server.kill(Survival::Torn(random.next())).await,
                _ => {
                    server.lose_disk().await;
                    if is_owner {
                        self.forget_disk();
                    }
                }
            }
        }
        let server = &mut self.servers[number];
        // One that nobody needs may stay away for a while.
        if !is_owner && random.coin() {
            server.start().await;
        }
    }

    fn take_over(&mut self) {
        let new = 1 - self.owner;
        tell!(self.story, "{} is to take over", self.servers[new].name);
        self.set_owner(new);
    }

    /// Lists of the bucket tell for a while what was there at its beginning. Often the tenant goes to the other server
    /// and back within this time, which then has to find what the lists do not tell.
    async fn lag_lists(&mut self, random: &mut Random) {
        if self.setting.quiet_after_attach <= Duration::from_secs(FAULT_SECONDS) {
            return;
        }
        let length = Duration::from_secs(1 + random.below(FAULT_SECONDS));
        tell!(self.story, "lists of the bucket lag by up to {length:?}");
        self.weather.worsen(length);
        let buckets = self.servers.each_ref().map(|server| server.bucket.clone());
        for bucket in &buckets {
            if let Err(error) = bucket.freeze_lists().await {
                tell!(self.story, "no list: {error}");
            }
        }
        drop(env::spawn::task("end of the lag", async move {
            env::clock::sleep(length).await;
            buckets.iter().for_each(|bucket| bucket.thaw_lists());
        }));
        for _ in 0..random.below(3) {
            self.take_over();
            self.settle_in().await;
            let (id, known) = self.any(random);
            known.origin.write(random);
            self.flush_one(id).await;
            env::clock::sleep(Duration::from_millis(random.below(5_000))).await;
        }
    }

    fn pause(&mut self, random: &mut Random) {
        let number = if random.coin() { self.owner } else { 1 - self.owner };
        let Some(process) = self.servers[number].process().cloned() else { return };
        let length = Duration::from_secs(1 + random.below(FAULT_SECONDS));
        tell!(self.story, "{} does nothing for {length:?}", self.servers[number].name);
        self.weather.worsen(length);
        process.stop();
        drop(env::spawn::task("end of a pause", async move {
            env::clock::sleep(length).await;
            process.proceed();
        }));
    }

    fn set_clock(&mut self, random: &mut Random) {
        let server = &self.servers[random.below(2) as usize];
        let Some(process) = server.process() else { return };
        let scale = 1 << random.below(20);
        let by = Duration::from_secs(random.below(scale));
        let (ahead, behind) = if random.coin() { (by, Duration::ZERO) } else { (Duration::ZERO, by) };
        tell!(self.story, "the clock of {} is {ahead:?} ahead, {behind:?} behind", server.name);
        process.set_clock(ahead, behind);
    }

    /// A layer of which the bucket has a good copy is damaged as disks do it.
    fn rot(&mut self, random: &mut Random) {
        let (id, _) = self.any(random);
        let Some(timeline) = self.timeline(id) else { return };
        let layers = timeline.layer_files();
        let with_copy: Vec<_> = layers.iter().filter(|layer| layer.is_local() && layer.is_remote()).collect();
        if with_copy.is_empty() {
            return;
        }
        let mut some = || with_copy[random.below(with_copy.len() as u64) as usize].path();
        let (path, other) = (some(), some());
        let disk = &self.owner().disk;
        let (Some(bytes), Some(other)) = (disk.read(path), disk.read(other)) else { return };
        if bytes.is_empty() || other.is_empty() {
            return;
        }
        let mut block = |bytes: &[u8]| {
            let start = random.below(bytes.len().div_ceil(BLOCK) as u64) as usize * BLOCK;
            start..bytes.len().min(start + BLOCK)
        };
        let (to, from, foreign) = (block(&bytes), block(&bytes), block(&other));
        let (what, new) = match random.below(4) {
            0 => ("a bit is another", vec![bytes[to.start] ^ 1 << random.below(8)]),
            1 => ("a write went to another place", bytes[from].to_vec()),
            2 => ("a write to another file went here", other[foreign].to_vec()),
            _ => ("a write was lost", vec![0; to.len()]),
        };
        tell!(self.story, "{}, block at {}: {what}", path.file_name().unwrap_or_default(), to.start);
        disk.damage(path, |bytes| {
            let len = new.len().min(to.len());
            bytes[to.start..to.start + len].copy_from_slice(&new[..len]);
        });
    }

    async fn limit(&mut self, random: &mut Random) {
        let (id, _) = self.any(random);
        let (Some(timeline), Some(known)) = (self.timeline(id), self.known.get_mut(&id)) else { return };
        let gc_horizon = 64 + random.below(8000);
        known.gc_horizon = known.gc_horizon.min(gc_horizon);
        let limits = Limits { gc_horizon: Some(gc_horizon), ..Limits::default() };
        let set = self.owner().run("limits", PATIENCE, async move { timeline.set_limits(limits).await });
        let set = set.await;
        tell!(self.story, "{id} is to keep {gc_horizon} bytes: {set:?}");
    }

    fn fault(&mut self, act: Act, random: &mut Random) {
        let number = if random.below(4) == 0 { 1 - self.owner } else { self.owner };
        let length = Duration::from_secs(1 + random.below(FAULT_SECONDS));
        let server = &self.servers[number];
        let (disk, bucket, name) = (server.disk.clone(), server.bucket.clone(), server.name);
        let process = server.process().cloned();
        match act {
            Act::BreakBucket => {
                let told = break_bucket(&bucket, random.next());
                tell!(self.story, "the bucket fails {name} for {length:?}: {told}");
            }
            Act::LoseBucket => {
                tell!(self.story, "the bucket is out of reach of {name} for {length:?}");
                bucket.set_gone(true);
            }
            Act::FailSync => {
                tell!(self.story, "a sync of {name} fails within {length:?}");
                let of = |effect: &Effect| matches!(effect, Effect::Sync { .. } | Effect::SyncDir { .. });
                disk.fail(Some(Failure { of, after: random.below(20), times: 1, errno: EIO }));
                drop(env::spawn::task("end of a server", end_with(disk.clone(), process, length)));
            }
            _ => {
                tell!(self.story, "the disk of {name} has no room for {length:?}");
                let of = |effect: &Effect| matches!(effect, Effect::Write { .. } | Effect::Create { .. });
                disk.fail(Some(Failure { of, after: random.below(20), times: u64::MAX, errno: ENOSPC }));
            }
        }
        self.weather.worsen(length);
        drop(env::spawn::task("end of a fault", async move {
            env::clock::sleep(length).await;
            match act {
                Act::BreakBucket => bucket.clear_plan(),
                Act::LoseBucket => bucket.set_gone(false),
                _ => disk.fail(None),
            }
        }));
    }

    /// No two servers believe at once that the tenant is theirs and that they know so.
    fn check_generations(&self) {
        let of =
            |number: usize| self.servers[number].manager()?.remote_of(self.tenant).map(|remote| remote.generation());
        if let (Some(one), Some(other)) = (of(0), of(1))
            && one == other
        {
            violation!(self.story, "both servers have the tenant in generation {one}");
        }
    }
}

/// Kills a server as soon as its disk is dead, within `length`: a real one would have ended itself.
async fn end_with(disk: SimDisk, process: Option<Process>, length: Duration) {
    let end = env::clock::now() + length;
    while env::clock::now() < end {
        if disk.crashed() {
            return process.iter().for_each(Process::kill);
        }
        env::clock::sleep(Duration::from_millis(10)).await;
    }
}
