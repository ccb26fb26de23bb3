//! What each [`Act`] does to the world.

use std::time::Duration;

use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Limits;
use simulated::random::Random;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::network::Link;
use crate::plan::{Act, Step};
use crate::reader::{Kept, Promise};
use crate::server::{PATIENCE, context};
use crate::story::{tell, violation};
use crate::tenant::Tenant;
use crate::world::{Known, World};

/// How many timelines a tenant has at most.
const TIMELINES: usize = 5;
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
        // The first one is busy, so that it comes far; more happens beside the others than to them.
        let tenant = if random.coin() { 0 } else { random.below(self.tenants.len() as u64) as usize };
        tell!(self.story, "{}: {:?} (tenant {tenant})", step.number, step.act);
        let others = self.others_than(tenant);
        self.act(step.act, tenant, &mut random).await;
        self.check_others(others);
        self.settle_in().await;
        self.delete_again().await;
        self.check_generations();
        self.check_homes();
        self.check_memory();
    }

    /// Something happens to a tenant, or to a server that is chosen by it.
    pub async fn act(&mut self, act: Act, tenant: usize, random: &mut Random) {
        match act {
            Act::Write => self.write(tenant, random),
            Act::Promote => self.promote(tenant, random),
            Act::Flush => self.flush(tenant, random).await,
            Act::Read => self.read(tenant, random).await,
            Act::Evict => self.evict(tenant, random).await,
            Act::ReadReplaced => self.read_replaced(tenant, random).await,
            Act::Branch => self.branch_somewhere(tenant, random).await,
            Act::DeleteBranch => self.delete_some(tenant, random).await,
            Act::DetachBranch => self.detach_some(tenant, random).await,
            Act::Hold => self.hold(tenant, random).await,
            Act::Release => self.release(tenant, random).await,
            Act::Lease => self.lease(tenant, random).await,
            Act::Compact => self.compact(tenant).await,
            Act::CollectGarbage => self.collect_garbage(tenant).await,
            Act::Restart | Act::Kill | Act::Crash | Act::LoseDisk => self.end_some(act, tenant, random).await,
            Act::KillMeanwhile => self.kill_meanwhile(tenant, random).await,
            Act::TakeOver => self.take_over(tenant),
            Act::Pause => self.pause(tenant, random),
            Act::SetClock => self.set_clock(random),
            Act::BreakBucket | Act::LoseBucket | Act::FillDisk | Act::FailSync => self.fault(act, tenant, random),
            Act::Rot => self.rot(tenant, random),
            Act::LagLists => self.lag_lists(tenant, random).await,
            Act::Limit => self.limit(tenant, random).await,
            Act::Wait => env::clock::sleep(Duration::from_secs(random.below(120))).await,
        }
    }

    fn write(&mut self, tenant: usize, random: &mut Random) {
        let (id, known) = self.any(tenant, random);
        let (count, last) = known.origin.write(random);
        tell!(self.story, "{count} records of {id}, up to {last}");
    }

    fn promote(&mut self, tenant: usize, random: &mut Random) {
        let (id, known) = self.any(tenant, random);
        if let Some(lsn) = known.origin.promote() {
            tell!(self.story, "whoever writes {id} is on another timeline of Postgres from {lsn} on");
        }
    }

    async fn flush(&mut self, tenant: usize, random: &mut Random) {
        let (id, _) = self.any(tenant, random);
        self.flush_one(id).await;
    }

    pub async fn flush_one(&mut self, id: TimelineId) {
        let Some(timeline) = self.timeline(id) else { return };
        let flushed = self.server_of(id).run("flush", PATIENCE, async move {
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

    async fn read(&mut self, tenant: usize, random: &mut Random) {
        let (id, known) = self.any(tenant, random);
        // Seldom somebody asks a server that should not have the tenant any more.
        let Tenant { id: name, owner, .. } = self.tenants[tenant];
        let server = if random.below(5) == 0 { 1 - owner } else { owner };
        let Some(timeline) = self.servers[server].timeline(name, id) else { return };
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
    async fn read_replaced(&mut self, tenant: usize, random: &mut Random) {
        let (id, known) = self.any(tenant, random);
        self.write_layer(id, &known, random).await;
        env::clock::sleep(IN_BUCKET).await;
        self.evict_from(id).await;
        let owner = self.owner_of(tenant);
        let (Some(timeline), Some(process)) = (self.timeline(id), owner.process().cloned()) else { return };
        let slow = Duration::from_millis(1 + random.below(2_000));
        let bucket = owner.bucket.clone();
        bucket.slow_reads(random.next(), slow);
        for number in 0..8 {
            let (subject, begins) = (self.subject(&known, self.tenants[tenant].owner), slow * number);
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
        self.compact(tenant).await;
        env::clock::sleep(slow * 8).await;
        bucket.slow_reads(0, Duration::ZERO);
    }

    async fn write_layer(&mut self, id: TimelineId, known: &Known, random: &mut Random) {
        known.origin.write(random);
        env::clock::sleep(IN_BUCKET).await;
        self.flush_one(id).await;
    }

    async fn evict(&mut self, tenant: usize, random: &mut Random) {
        let (id, _) = self.any(tenant, random);
        self.evict_from(id).await;
    }

    async fn evict_from(&mut self, id: TimelineId) {
        let Some(timeline) = self.timeline(id) else { return };
        let evicted = self.server_of(id).run("eviction", PATIENCE, async move {
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
    fn some_moment(&self, tenant: usize, random: &mut Random) -> Option<(TimelineId, Lsn)> {
        let (id, known) = self.any(tenant, random);
        let last = self.timeline(id)?.last_record_lsn();
        let mut moments = known.origin.all_moments(last);
        // Half are what it inherits, which an ancestor has to keep for it.
        let inherited = moments.partition_point(|lsn| *lsn < known.origin.begins);
        if inherited > 0 && random.coin() {
            moments.truncate(inherited);
        }
        // Late ones are not gone as often.
        let from_end = random.below(moments.len() as u64).min(random.below(moments.len() as u64)) as usize;
        Some((id, moments[moments.len() - 1 - from_end]))
    }

    async fn branch_somewhere(&mut self, tenant: usize, random: &mut Random) {
        if let Some((id, lsn)) = self.some_moment(tenant, random)
            && self.count(tenant) < TIMELINES
        {
            self.branch(id, lsn).await;
        }
    }

    async fn delete_some(&mut self, tenant: usize, random: &mut Random) {
        let (id, _) = self.any(tenant, random);
        if id != self.tenants[tenant].root {
            self.delete(id).await;
        }
    }

    async fn detach_some(&mut self, tenant: usize, random: &mut Random) {
        let (id, _) = self.any(tenant, random);
        let (owner, tenant) = (self.owner_of(tenant), self.tenants[tenant].id);
        let Some(manager) = owner.manager() else { return };
        let detached = owner.run("detachment", PATIENCE, async move { manager.detach_timeline(tenant, id).await });
        let detached = detached.await;
        tell!(self.story, "{id} detached from its ancestor: {detached:?}");
    }

    async fn hold(&mut self, tenant: usize, random: &mut Random) {
        let Some((id, lsn)) = self.some_moment(tenant, random) else { return };
        let name = format!("hold {:x}", random.next());
        self.keep(id, Promise { lsn, name: Some(name), until: None, kept: Kept::Perhaps }).await;
    }

    async fn lease(&mut self, tenant: usize, random: &mut Random) {
        let Some((id, lsn)) = self.some_moment(tenant, random).filter(|_| self.clocks_agree) else { return };
        let until = env::clock::now() + Duration::from_secs(10 + random.below(600));
        self.keep(id, Promise { lsn, name: None, until: Some(until), kept: Kept::Perhaps }).await;
    }

    /// Asks the owner to keep a moment.
    async fn keep(&mut self, id: TimelineId, promise: Promise) {
        let (Some(timeline), Some(known)) = (self.timeline(id), self.known.get(&id)) else { return };
        let (asked, promises) = (promise.clone(), known.promises.clone());
        promises.lock().push(promise.clone());
        let kept = self.server_of(id).run("keeping", PATIENCE, async move {
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

    async fn release(&mut self, tenant: usize, random: &mut Random) {
        let (id, known) = self.any(tenant, random);
        let held = known.promises.lock().iter().find_map(|promise| promise.name.clone());
        let (Some(timeline), Some(name)) = (self.timeline(id), held) else { return };
        // Whatever comes of it, nobody relies on it any more.
        known.promises.lock().retain(|promise| promise.name.as_ref() != Some(&name));
        let released = self.server_of(id).run("release", PATIENCE, async move { timeline.release(&name).await });
        let released = released.await;
        tell!(self.story, "a hold of {id} is released: {released:?}");
    }

    /// The owner compacts all tenants that it has.
    async fn compact(&mut self, tenant: usize) {
        let owner = self.owner_of(tenant);
        let Some(manager) = owner.manager() else { return };
        let done = owner.run("compaction", PATIENCE, async move {
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

    /// What nothing keeps of a tenant's history goes.
    pub async fn collect_garbage(&mut self, tenant: usize) {
        let (owner, tenant) = (self.owner_of(tenant), self.tenants[tenant].id);
        let Some(manager) = owner.manager() else { return };
        let done = owner.run("garbage collection", PATIENCE, async move {
            let reports = manager.collect_garbage(tenant, false).await?;
            Ok::<_, ManageError>(reports.iter().map(|it| (it.cutoff, it.removed_layers)).collect::<Vec<_>>())
        });
        let done = done.await;
        tell!(self.story, "cutoffs, and layers that have gone: {done:?}");
    }

    async fn limit(&mut self, tenant: usize, random: &mut Random) {
        let (id, _) = self.any(tenant, random);
        let (Some(timeline), Some(known)) = (self.timeline(id), self.known.get_mut(&id)) else { return };
        let gc_horizon = 64 + random.below(8000);
        known.gc_horizon = known.gc_horizon.min(gc_horizon);
        let limits = Limits { gc_horizon: Some(gc_horizon), ..Limits::default() };
        let set = self.server_of(id).run("limits", PATIENCE, async move { timeline.set_limits(limits).await });
        let set = set.await;
        tell!(self.story, "{id} is to keep {gc_horizon} bytes: {set:?}");
    }
}
