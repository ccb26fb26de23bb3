//! An owner and its standbys, which take over by themselves: three servers on one bucket, of which any may be paused,
//! cut off, slowed or killed at any moment.
//!
//! In some of the worlds the tenant is handed over from one to the other as well.
//!
//! What must hold: at no moment does more than one of them act as the owner of the tenant, that is acknowledge and
//! serve what only it has. And once nothing fails any more there is an owner, whose place is taken in time when it is
//! killed.

use std::time::{Duration, Instant};

use anyhow::Context;
use camino::Utf8PathBuf;
use engine::config::LeasePolicy;
use pageserver_api::shard::TenantShardId;
use simulated::aged::AgedStore;
use simulated::platter::Survival;
use simulated::random::Random;
use utils::id::{TenantId, TimelineId};

use crate::moving::{Doom, order};
use crate::plan::{Plan, Setting};
use crate::run::{Outcome, run_world};
use crate::server::{PATIENCE, Server};
use crate::story::{Story, Telling, tell, violation};
use crate::weather::break_bucket;
use crate::world::make_first;

const POLICY: LeasePolicy = LeasePolicy::DEFAULT;
/// How often it is looked who acts as the owner.
const LOOK: Duration = Duration::from_millis(20);
/// What taking over may take beside the time after which it begins, in calm weather.
const IN_TIME: Duration = Duration::from_secs(1);
/// How long everything takes to be well after the last fault.
const RECOVERY: Duration = Duration::from_secs(120);
/// Names of the servers.
const NAMES: [&str; 3] = ["first", "second", "third"];

struct World {
    servers: [Server; 3],
    /// Until when each does nothing.
    stopped: [Option<Instant>; 3],
    /// When each is started again.
    down: [Option<Instant>; 3],
    /// When each one's view of the bucket is well again.
    ill: [Option<Instant>; 3],
    tenant: TenantShardId,
    timeline: TimelineId,
    story: Story,
    random: Random,
    /// The tenant is handed over now and then.
    moves: bool,
    doom: Option<Doom>,
}

/// Runs the world of a seed.
pub fn run(seed: u64, telling: Telling) -> Outcome {
    run_world(seed, telling, move |story| Box::pin(perform(seed, story, false)))
}

/// Runs that in which the tenant is handed over as well.
pub fn run_with_moves(seed: u64, telling: Telling) -> Outcome {
    run_world(seed, telling, move |story| Box::pin(perform(seed, story, true)))
}

async fn perform(seed: u64, story: Story, moves: bool) -> anyhow::Result<()> {
    let mut random = Random::new(seed);
    let drawn = Plan::draw(seed).setting;
    let setting = Setting {
        memory: drawn.memory.sealed_in_place(),
        is_postgres: false,
        tenants: 1,
        lease: POLICY,
        disk_micros: 0,
        bucket_micros: 1_000 * random.below(30),
        ..drawn
    };
    let root = Utf8PathBuf::from(format!("/simulated/{:016x}", env::random::u64()));
    let bucket = std::sync::Arc::new(AgedStore::default());
    let servers = NAMES.map(|name| {
        // The first owner keeps a lease from the beginning, the others when they have taken over.
        let lease = LeasePolicy { keep: name == NAMES[0], ..POLICY };
        Server::new(name, root.join(name), &bucket, &Setting { lease, ..setting }, &story)
    });
    let (tenant, timeline) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
    let none = [None; 3];
    let doom = None;
    let mut world =
        World { servers, stopped: none, down: none, ill: none, tenant, timeline, story, random, moves, doom };
    world.begin().await?;
    for _ in 0..4 + world.random.below(12) {
        world.fail().await;
        let length = Duration::from_millis(world.random.below(15_000));
        world.pass(length).await;
        if world.story.broken_promise().is_some() {
            return Ok(());
        }
    }
    world.end().await;
    Ok(())
}

impl World {
    async fn begin(&mut self) -> anyhow::Result<()> {
        for server in &mut self.servers {
            anyhow::ensure!(server.start().await, "{} does not start", server.name);
        }
        let (tenant, timeline) = (self.tenant, self.timeline);
        let manager = self.servers[0].manager().context("the first server is gone")?;
        let made = self.servers[0].run("creation", PATIENCE, make_first(manager, tenant, timeline, false)).await;
        anyhow::ensure!(made.transpose()?.unwrap_or(false), "no timeline was made");
        self.pass(Duration::from_secs(5)).await;
        Ok(())
    }

    /// Something fails, or nothing.
    async fn fail(&mut self) {
        if self.moves && self.random.below(3) > 0 {
            self.doom = order(&self.servers, self.tenant, &mut self.random, &self.story).await;
            return;
        }
        let number = self.random.below(3) as usize;
        // What lasts about as long as a takeover takes is the most interesting.
        let length = match self.random.below(2) {
            0 => Duration::from_millis(self.random.below(60_000)),
            _ => POLICY.takeover_after - Duration::from_secs(3) + Duration::from_millis(self.random.below(6_000)),
        };
        let until = Some(env::clock::now() + length);
        let server = &self.servers[number];
        let name = server.name;
        match self.random.below(5) {
            0 | 1 => {
                let Some(process) = server.process() else { return };
                tell!(self.story, "{name} does nothing for {length:?}");
                process.stop();
                self.stopped[number] = until;
            }
            2 => {
                tell!(self.story, "the bucket is out of reach of {name} for {length:?}");
                server.bucket.set_gone(true);
                self.ill[number] = until;
            }
            3 => {
                let mut some = || Duration::from_millis(self.random.below(1_200));
                let (there, back) = (some(), some());
                tell!(self.story, "the bucket is {there:?} and {back:?} away from {name}, for {length:?}");
                server.bucket.set_latency(there);
                server.bucket.set_reply_latency(back);
                if self.random.coin() {
                    break_bucket(&server.bucket, self.random.next());
                }
                self.ill[number] = until;
            }
            _ => {
                self.down[number] = until;
            }
        }
    }

    /// Lets time pass; those who are to come back do so, and nobody sees two owners.
    async fn pass(&mut self, length: Duration) {
        let end = env::clock::now() + length;
        let mut tended = env::clock::now();
        while env::clock::now() < end && self.story.broken_promise().is_none() {
            env::clock::sleep(LOOK).await;
            self.check();
            self.meet_doom();
            for number in 0..self.servers.len() {
                self.come_and_go(number).await;
            }
            if env::clock::now().saturating_duration_since(tended) >= Duration::from_secs(1) {
                tended = env::clock::now();
                for number in 0..self.servers.len() {
                    self.tend(number).await;
                }
            }
        }
    }

    /// What is to happen in the course of a handover does.
    fn meet_doom(&mut self) {
        let Some(doom) = self.doom.take_if(|doom| doom.at <= env::clock::now()) else { return };
        let until = Some(env::clock::now() + doom.length);
        if doom.is_death {
            self.down[doom.number] = until;
        } else if let Some(process) = self.servers[doom.number].process() {
            tell!(self.story, "{} does nothing for {:?}", NAMES[doom.number], doom.length);
            process.stop();
            self.stopped[doom.number] = until;
        }
    }

    async fn come_and_go(&mut self, number: usize) {
        let now = env::clock::now();
        let is_over = |until: &Option<Instant>| until.is_some_and(|until| until <= now);
        let server = &mut self.servers[number];
        if server.is_alive() && self.down[number].is_some() {
            server.kill(Survival::Everything).await;
            self.stopped[number] = None;
        }
        if is_over(&self.stopped[number]) {
            self.stopped[number] = None;
            if let Some(process) = server.process() {
                tell!(self.story, "{} goes on", server.name);
                process.proceed();
            }
        }
        if is_over(&self.ill[number]) {
            self.ill[number] = None;
            server.bucket.set_gone(false);
            server.bucket.set_latency(Duration::from_millis(5));
            server.bucket.set_reply_latency(Duration::ZERO);
            server.bucket.clear_plan();
        }
        if is_over(&self.down[number]) && self.ill[number].is_none() {
            self.down[number] = None;
            server.start().await;
        }
    }

    /// What an operator does: whoever does not have the tenant is to be a standby.
    async fn tend(&mut self, number: usize) {
        let server = &self.servers[number];
        let (Some(manager), None, None) = (server.manager(), self.stopped[number], self.ill[number]) else { return };
        let tenant = self.tenant;
        let is_fenced = manager.remote_of(tenant).is_some_and(|remote| remote.fenced().is_some());
        let is_known = manager.remote_of(tenant).is_some() || manager.standbys().iter().any(|(id, _)| *id == tenant);
        if is_known && !is_fenced {
            return;
        }
        let making = async move { manager.make_standby(tenant).await };
        if let Some(Err(error)) = server.run("a standby", Duration::from_secs(5), making).await {
            tell!(self.story, "{} is no standby: {error}", server.name);
        }
    }

    /// The servers that act as the owner at this moment.
    fn acting(&self) -> Vec<usize> {
        let acts = |number: &usize| {
            let server = &self.servers[*number];
            let process = server.process().is_some_and(|process| !process.is_dead());
            let manager = server.manager().filter(|_| process && self.stopped[*number].is_none());
            let remote = manager.and_then(|manager| manager.remote_of(self.tenant));
            remote.is_some_and(|remote| remote.fenced().is_none() && remote.check_lease().is_ok())
        };
        (0..self.servers.len()).filter(acts).collect()
    }

    fn check(&self) {
        let acting = self.acting();
        if acting.len() > 1 {
            let names: Vec<&str> = acting.iter().map(|number| NAMES[*number]).collect();
            violation!(self.story, "{names:?} act as the owner at the same time");
        }
    }

    /// All faults end; then the owner is killed, and its place is taken in time.
    async fn end(&mut self) {
        let now = Some(env::clock::now());
        self.doom = None;
        for number in 0..self.servers.len() {
            for what in [&mut self.stopped[number], &mut self.ill[number], &mut self.down[number]] {
                *what = what.and(now);
            }
        }
        self.pass(RECOVERY).await;
        let &[owner] = &self.acting()[..] else {
            return violation!(self.story, "nobody owns the tenant, although nothing fails");
        };
        tell!(self.story, "{} owns the tenant, and is killed", NAMES[owner]);
        self.down[owner] = Some(env::clock::now() + RECOVERY);
        let killed = env::clock::now();
        while self.story.broken_promise().is_none() {
            self.pass(LOOK).await;
            let taken = env::clock::now().saturating_duration_since(killed);
            let heir = self.acting().into_iter().find(|number| *number != owner);
            if heir.is_some_and(|heir| self.servers[heir].timeline(self.tenant, self.timeline).is_some()) {
                return tell!(self.story, "another one does after {taken:?}");
            }
            if taken > POLICY.takeover_after + IN_TIME {
                violation!(self.story, "nobody has taken over after {taken:?}");
            }
        }
    }
}
