//! What fails, and who ends: servers, disks, the bucket and clocks.

use std::time::Duration;

use env::process::Process;
use simulated::disk::{EIO, ENOSPC, Failure, SimDisk};
use simulated::platter::{Effect, Survival};
use simulated::random::Random;

use crate::plan::Act;
use crate::story::tell;
use crate::weather::break_bucket;
use crate::world::World;

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

impl World {
    /// A server is killed while it does what an operator asks for.
    pub async fn kill_meanwhile(&mut self, tenant: usize, random: &mut Random) {
        let owner = self.owner_of(tenant);
        let Some(process) = owner.process().cloned() else { return };
        let scale = 1 << (10 + random.below(14));
        let after = Duration::from_micros(random.below(scale));
        let act = CALLS[random.below(CALLS.len() as u64) as usize];
        tell!(self.story, "{} is killed after {after:?} of {act:?}", owner.name);
        // Whoever reads just now may be told anything.
        self.weather.worsen(after);
        let victim = process.clone();
        drop(env::spawn::task("a kill", async move {
            env::clock::sleep(after).await;
            victim.kill();
        }));
        Box::pin(self.act(act, tenant, random)).await;
        // What took less time is over when the kill comes.
        process.kill();
    }

    /// Mostly the tenant's owner, sometimes the other server, which may have other tenants or none.
    fn some_server(&self, tenant: usize, random: &mut Random) -> usize {
        let owner = self.tenants[tenant].owner;
        if random.below(4) == 0 { 1 - owner } else { owner }
    }

    /// A server ends, with all tenants that it has.
    pub async fn end_some(&mut self, act: Act, tenant: usize, random: &mut Random) {
        let number = self.some_server(tenant, random);
        self.note_said();
        if act == Act::LoseDisk {
            self.forget_disk(number);
        }
        let server = &mut self.servers[number];
        if server.is_alive() {
            match act {
                Act::Restart => server.shut_down().await,
                Act::Kill => server.kill(Survival::Everything).await,
                Act::Crash if random.coin() => server.kill(Survival::Synced).await,
                Act::Crash => server.kill(Survival::Torn(random.next())).await,
                _ => server.lose_disk().await,
            }
        }
        // One that nobody needs may stay away for a while.
        let is_needed = self.tenants.iter().any(|tenant| tenant.owner == number);
        if !is_needed && random.coin() {
            self.servers[number].start().await;
        }
    }

    pub fn take_over(&mut self, tenant: usize) {
        let new = 1 - self.tenants[tenant].owner;
        tell!(self.story, "{} is to take tenant {tenant} over", self.servers[new].name);
        self.set_owner(tenant, new);
    }

    /// Lists of the bucket tell for a while what was there at its beginning. Often the tenant goes to the other server
    /// and back within this time, which then has to find what the lists do not tell.
    pub async fn lag_lists(&mut self, tenant: usize, random: &mut Random) {
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
            self.take_over(tenant);
            self.settle_in().await;
            let (id, known) = self.any(tenant, random);
            known.origin.write(random);
            self.flush_one(id).await;
            env::clock::sleep(Duration::from_millis(random.below(5_000))).await;
        }
    }

    pub fn pause(&mut self, tenant: usize, random: &mut Random) {
        let owner = self.tenants[tenant].owner;
        let number = if random.coin() { owner } else { 1 - owner };
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

    pub fn set_clock(&mut self, random: &mut Random) {
        let server = &self.servers[random.below(2) as usize];
        let Some(process) = server.process() else { return };
        let scale = 1 << random.below(20);
        let by = Duration::from_secs(random.below(scale));
        let (ahead, behind) = if random.coin() { (by, Duration::ZERO) } else { (Duration::ZERO, by) };
        tell!(self.story, "the clock of {} is {ahead:?} ahead, {behind:?} behind", server.name);
        process.set_clock(ahead, behind);
    }

    /// A layer of which the bucket has a good copy is damaged as disks do it.
    pub fn rot(&mut self, tenant: usize, random: &mut Random) {
        let (id, _) = self.any(tenant, random);
        let Some(timeline) = self.timeline(id) else { return };
        let layers = timeline.layer_files();
        let with_copy: Vec<_> = layers.iter().filter(|layer| layer.is_local() && layer.is_remote()).collect();
        if with_copy.is_empty() {
            return;
        }
        let mut some = || with_copy[random.below(with_copy.len() as u64) as usize].path();
        let (path, other) = (some(), some());
        let disk = &self.owner_of(tenant).disk;
        let (Some(bytes), Some(other)) = (disk.read(path), disk.read(other)) else { return };
        if bytes.is_empty() || other.is_empty() {
            return;
        }
        let mut block = |bytes: &[u8]| {
            let start = random.below(bytes.len().div_ceil(BLOCK) as u64) as usize * BLOCK;
            start..bytes.len().min(start + BLOCK)
        };
        let (to, from, foreign) = (block(&bytes), block(&bytes), block(&other));
        let name = path.file_name().unwrap_or_default();
        let (what, new) = match random.below(5) {
            4 => {
                tell!(self.story, "{name} has what another file has");
                return disk.damage(path, |bytes| *bytes = other);
            }
            0 => ("a bit is another", vec![bytes[to.start] ^ 1 << random.below(8)]),
            1 => ("a write went to another place", bytes[from].to_vec()),
            2 => ("a write to another file went here", other[foreign].to_vec()),
            _ => ("a write was lost", vec![0; to.len()]),
        };
        tell!(self.story, "{name}, block at {}: {what}", to.start);
        disk.damage(path, |bytes| {
            let len = new.len().min(to.len());
            bytes[to.start..to.start + len].copy_from_slice(&new[..len]);
        });
    }

    pub fn fault(&mut self, act: Act, tenant: usize, random: &mut Random) {
        let number = self.some_server(tenant, random);
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
