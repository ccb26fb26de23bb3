//! An owner and a standby with journals, and a Postgres whose commits wait for both: either of them may be paused, cut
//! off from the bucket or killed at any moment, or have a disk that takes seconds for each call; and the Postgres may
//! be lost, whose place another one takes.
//!
//! What must hold: when one of the two servers is lost with its disk, together with the Postgres, and the other one's
//! process ends, all that was committed is there once that is up again, as of the end of a record, page by page; but
//! not necessarily what an owner had in its layers only, as its journal was full (`docs/durability.md`). In half of the
//! worlds the journal's tail is put into the bucket. When there all three are lost with their disks, what was committed
//! some seconds before is there.

mod ending;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use camino::Utf8PathBuf;
use engine::config::LeasePolicy;
use engine::tenant::manager::ManageError;
use pageserver::walreceiver::{NewWriter, Writer};
use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use simulated::aged::AgedStore;
use simulated::model::Model;
use simulated::platter::Survival;
use simulated::random::Random;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::moving::{Doom, order};
use crate::origin::Origin;
use crate::plan::{Plan, Setting};
use crate::postgres::{BEGINS, CREATED, Postgres};
use crate::run::{Outcome, run_world};
use crate::server::{PATIENCE, Server};
use crate::story::{Story, Telling, tell};
use crate::walsender::{Quorum, Reached, connstr, listen_for};
use crate::world::make_first;

const POLICY: LeasePolicy = LeasePolicy::DEFAULT;
/// How often things come and go.
const LOOK: Duration = Duration::from_millis(50);
/// How long everything takes to be well after the last fault.
const RECOVERY: Duration = Duration::from_secs(120);
/// How often the tail is put into the bucket, where it is.
const TAIL: Duration = Duration::from_secs(2);
/// How long a call of a disk takes at most while the disk is slow.
const SLOW: Duration = Duration::from_secs(4);
/// Names of the servers.
const NAMES: [&str; 2] = ["first", "second"];

/// The Postgres that writes now.
struct Host {
    origin: Origin,
    quorum: Arc<Mutex<Quorum>>,
    /// Which of those that have written it is.
    number: u64,
    /// The one before, unless it is known that the owner has taken this one for its writer.
    former: Option<Origin>,
    /// What was committed before it began.
    floor: Lsn,
    /// Unless it is lost.
    reached: Option<Reached>,
}

struct World {
    servers: [Server; 2],
    /// Until when each does nothing.
    stopped: [Option<Instant>; 2],
    /// When each is started again.
    down: [Option<Instant>; 2],
    /// When each one's view of the bucket is well again.
    ill: [Option<Instant>; 2],
    /// When each one's disk is quick again.
    slow: [Option<Instant>; 2],
    host: Host,
    is_calm: Arc<AtomicBool>,
    tenant: TenantShardId,
    timeline: TimelineId,
    story: Story,
    random: Random,
    /// The Postgres writes all the time: journals are full soon.
    is_busy: bool,
    /// The tenant is handed over now and then.
    moves: bool,
    doom: Option<Doom>,
}

/// What else happens in a world.
#[derive(Clone, Copy, Default)]
struct Twists {
    /// The journal's tail is put into the bucket.
    has_tail: bool,
    /// The tenant is handed over now and then.
    moves: bool,
    /// All disks are lost in the end.
    loses_all: bool,
    /// In the end the disk of the server that is left is slow.
    ends_slowly: bool,
    /// In the end the standby has just taken over when it is lost.
    ends_after_a_takeover: bool,
}

/// Runs the world of a seed.
pub fn run(seed: u64, telling: Telling) -> Outcome {
    run_with(seed, telling, Twists { has_tail: seed.is_multiple_of(2), ..Twists::default() })
}

/// Runs that in which the tenant is handed over as well.
pub fn run_with_moves(seed: u64, telling: Telling) -> Outcome {
    run_with(seed, telling, Twists { has_tail: seed.is_multiple_of(2), moves: true, ..Twists::default() })
}

/// Runs that in which what is left has a slow disk when the other one is lost.
pub fn run_on_a_slow_disk(seed: u64, telling: Telling) -> Outcome {
    run_with(seed, telling, Twists { ends_slowly: true, ..Twists::default() })
}

/// Runs that in which the server that is lost has just taken over, and cannot put anything into the bucket.
pub fn run_after_a_takeover(seed: u64, telling: Telling) -> Outcome {
    run_with(seed, telling, Twists { ends_after_a_takeover: true, ..Twists::default() })
}

/// Runs that in which all disks are lost in the end.
pub fn run_to_the_tail(seed: u64, telling: Telling) -> Outcome {
    run_with(seed, telling, Twists { has_tail: true, loses_all: true, ..Twists::default() })
}

fn run_with(seed: u64, telling: Telling, twists: Twists) -> Outcome {
    run_world(seed, telling, move |story| {
        Box::pin(async move {
            let Some(mut world) = World::live(seed, twists, story).await? else { return Ok(()) };
            if twists.loses_all {
                world.lose_all_disks().await;
            } else if twists.ends_after_a_takeover {
                world.lose_after_a_takeover(seed.is_multiple_of(4)).await;
            } else {
                world.lose(twists.ends_slowly).await;
            }
            Ok(())
        })
    })
}

impl Host {
    fn new(origin: Origin, number: u64, is_calm: &Arc<AtomicBool>) -> Self {
        let quorum = Arc::new(Mutex::new(Quorum::of(NAMES.len())));
        let reached = listen_for(&origin, is_calm, Arc::clone(&quorum));
        Self { origin, quorum, number, former: None, floor: Lsn::INVALID, reached: Some(reached) }
    }

    /// The end of the last record that is committed.
    fn committed(&self) -> Lsn {
        let committed = self.quorum.lock().committed();
        self.origin.moments(committed).last().copied().unwrap_or_default().max(self.floor)
    }

    /// Itself, as a server is told of it.
    fn writer(&self) -> NewWriter {
        let (id, start_lsn) = (format!("{}-{}", self.origin.id, self.number), self.origin.begins);
        let writer = Writer { id, name: "postgres".to_owned(), start_lsn };
        NewWriter { writer, connstr: connstr(&self.origin), slot: "slot".to_owned(), replace: true }
    }
}

impl World {
    /// Lives through what the seed has in store; `None` if a promise was broken.
    async fn live(seed: u64, twists: Twists, story: Story) -> anyhow::Result<Option<Self>> {
        let mut random = Random::new(seed);
        let drawn = Plan::draw(seed).setting;
        let setting = Setting {
            memory: drawn.memory.sealed_in_place(),
            is_postgres: true,
            has_journal: true,
            tenants: 1,
            lease: POLICY,
            tail: twists.has_tail.then_some(TAIL),
            disk_micros: 0,
            bucket_micros: 1_000 * random.below(30),
            ..drawn
        };
        let root = Utf8PathBuf::from(format!("/simulated/{:016x}", env::random::u64()));
        let bucket = Arc::new(AgedStore::default());
        let servers = NAMES.map(|name| {
            let lease = LeasePolicy { keep: name == NAMES[0], ..POLICY };
            Server::new(name, root.join(name), &bucket, &Setting { lease, ..setting }, &story)
        });
        let (tenant, timeline) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
        let is_calm = Arc::new(AtomicBool::new(random.coin()));
        let origin = Origin::new(timeline, BEGINS, Model::default(), Vec::new(), Some(Postgres::new(BEGINS, CREATED)));
        let (host, none) = (Host::new(origin, 1, &is_calm), [None; 2]);
        let mut world = Self {
            servers,
            stopped: none,
            down: none,
            ill: none,
            slow: none,
            host,
            is_calm,
            tenant,
            timeline,
            story,
            random,
            is_busy: false,
            moves: twists.moves,
            doom: None,
        };
        world.begin().await?;
        for _ in 0..2 + world.random.below(8) {
            world.fail().await;
            let length = Duration::from_millis(world.random.below(12_000));
            world.pass(length).await;
            if world.story.broken_promise().is_some() {
                return Ok(None);
            }
        }
        Ok(Some(world))
    }

    async fn begin(&mut self) -> anyhow::Result<()> {
        for server in &mut self.servers {
            anyhow::ensure!(server.start().await, "{} does not start", server.name);
        }
        let (tenant, timeline) = (self.tenant, self.timeline);
        let manager = self.servers[0].manager().context("the first server is gone")?;
        let made = self.servers[0].run("creation", PATIENCE, make_first(manager, tenant, timeline, true)).await;
        anyhow::ensure!(made.transpose()?.unwrap_or(false), "no timeline was made");
        self.register(0).await.context("the Postgres is not registered")?;
        self.pass(Duration::from_secs(20)).await;
        Ok(())
    }

    /// Tells the server that owns the timeline of the Postgres that writes.
    async fn register(&self, number: usize) -> Result<(), ManageError> {
        let server = &self.servers[number];
        let (Some(receivers), Some(timeline)) = (server.receivers(), server.timeline(self.tenant, self.timeline))
        else {
            return Err(ManageError::Busy(format!("{} does not have it", server.name)));
        };
        let new = self.host.writer();
        let told = server.run("registration", PATIENCE, async move { receivers.register_writer(&timeline, new).await });
        told.await.unwrap_or_else(|| Err(ManageError::Busy("it takes too long".to_owned())))
    }

    /// Something fails, or nothing.
    async fn fail(&mut self) {
        if self.moves && self.random.coin() {
            self.doom = order(&self.servers, self.tenant, &mut self.random, &self.story).await;
            return;
        }
        let number = self.random.below(2) as usize;
        let length = Duration::from_millis(self.random.below(25_000));
        let until = Some(env::clock::now() + length);
        let server = &self.servers[number];
        let name = server.name;
        match self.random.below(8) {
            0 | 1 => drop(self.stop(number, length)),
            2 => {
                tell!(self.story, "the bucket is out of reach of {name} for {length:?}");
                server.bucket.set_gone(true);
                self.ill[number] = until;
            }
            3 | 4 => self.down[number] = until,
            5 | 6 => self.replace().await,
            _ => {
                tell!(self.story, "the disk of {name} is slow for {length:?}");
                server.disk.delay_calls(self.random.next(), SLOW);
                self.slow[number] = until;
            }
        }
    }

    /// The Postgres is lost, and another one takes its place where the owner says that the timeline ends.
    async fn replace(&mut self) {
        let &[owner] = &self.acting()[..] else { return };
        let (timeline, before) = (self.servers[owner].timeline(self.tenant, self.timeline), self.host.committed());
        // Who of two has written what is there is not known then.
        let Some(timeline) = timeline.filter(|_| self.host.former.is_none()) else { return };
        let end = timeline.last_record_lsn();
        // What only the journal has is taken in before somebody begins behind it.
        if end <= self.host.origin.begins || end < before || !self.host.origin.moments(end).contains(&end) {
            return;
        }
        tell!(self.story, "the Postgres is lost, and another one goes on from {end}");
        let origin = self.host.origin.branch(self.timeline, end);
        let former = self.host.origin.clone();
        self.host = Host::new(origin, self.host.number + 1, &self.is_calm);
        (self.host.former, self.host.floor) = (Some(former), before);
        for _ in 0..20 {
            match self.register(owner).await {
                Ok(()) => {
                    (self.host.former, self.host.floor) = (None, end);
                    return tell!(self.story, "it is registered");
                }
                Err(error) => tell!(self.story, "it is not registered: {error}"),
            }
            self.pass(Duration::from_secs(3)).await;
            if self.acting() != [owner] {
                break;
            }
        }
    }

    /// Lets time pass, in which the Postgres writes.
    async fn pass(&mut self, length: Duration) {
        let end = env::clock::now() + length;
        let mut tended = env::clock::now();
        while env::clock::now() < end && self.story.broken_promise().is_none() {
            env::clock::sleep(LOOK).await;
            if self.random.below(if self.is_busy { 1 } else { 40 }) == 0 {
                self.host.origin.write(&mut self.random);
                self.host.origin.commit();
            }
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
        if doom.is_death {
            self.down[doom.number] = Some(env::clock::now() + doom.length);
        } else {
            self.stop(doom.number, doom.length);
        }
    }

    async fn come_and_go(&mut self, number: usize) {
        let now = env::clock::now();
        let is_over = |until: &Option<Instant>| until.is_some_and(|until| until <= now);
        let server = &mut self.servers[number];
        if server.is_alive() && self.down[number].is_some() {
            server.kill(Survival::Synced).await;
            self.stopped[number] = None;
        }
        if is_over(&self.stopped[number]) {
            self.stopped[number] = None;
            if let Some(process) = server.process() {
                process.proceed();
            }
        }
        if is_over(&self.ill[number]) {
            self.ill[number] = None;
            server.bucket.set_gone(false);
        }
        if is_over(&self.slow[number]) {
            self.slow[number] = None;
            server.disk.delay_calls(0, Duration::ZERO);
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
        let receivers = server.receivers();
        let making = async move {
            manager.make_standby(tenant).await?;
            if let Some(receivers) = receivers {
                receivers.start_tenant(tenant).await;
            }
            Ok::<_, ManageError>(())
        };
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

    /// A server does nothing for so long; false if it is gone.
    fn stop(&mut self, number: usize, length: Duration) -> bool {
        let Some(process) = self.servers[number].process() else { return false };
        tell!(self.story, "{} does nothing for {length:?}", NAMES[number]);
        process.stop();
        self.stopped[number] = Some(env::clock::now() + length);
        true
    }
}
