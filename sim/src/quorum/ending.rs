//! How worlds of a quorum end: who is lost, and what has to be there.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use engine::tenant::timeline::Timeline;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpaceBuilder;
use simulated::model::Model;
use simulated::platter::Survival;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::{Host, LOOK, NAMES, RECOVERY, SLOW, TAIL, World};
use crate::origin::Origin;
use crate::postgres::{BEGINS, pages};
use crate::server::{PATIENCE, Server, context};
use crate::story::{tell, violation};

impl World {
    /// Any of an owner and its standby, if there are both: also one that was the owner, or is about to be, whether it
    /// knows that or not.
    fn one_of_two(&mut self) -> Option<usize> {
        let has_part = |server: &Server| {
            let Some(manager) = server.manager() else { return false };
            let is_standby = manager.standbys().iter().any(|(id, _)| *id == self.tenant);
            is_standby || manager.remote_of(self.tenant).is_some()
        };
        let have_both = self.servers.iter().all(has_part);
        have_both.then(|| self.random.below(2) as usize)
    }

    /// Any of the two servers is lost, as [`lose_one`](Self::lose_one) says.
    pub(super) async fn lose(&mut self, slowly: bool) {
        let Some(lost) = self.one_of_two() else { return tell!(self.story, "there are no two servers") };
        let left = 1 - lost;
        if slowly {
            tell!(self.story, "the disk of {} is slow", NAMES[left]);
            self.servers[left].disk.delay_calls(self.random.next(), SLOW);
            let length = Duration::from_millis(self.random.below(10_000));
            self.pass(length).await;
            if self.one_of_two().is_none() {
                return tell!(self.story, "there are no two servers any more");
            }
        }
        self.lose_one(lost).await;
    }

    /// The standby takes over, perhaps from an owner that had more, and perhaps another Postgres writes then; the
    /// bucket gets nothing of it, and the former owner is back for a moment when the standby is lost. If the Postgres
    /// is lost with the owner, nobody else has what that had more than the standby: another one goes on without.
    pub(super) async fn lose_after_a_takeover(&mut self, with_postgres: bool) {
        let (&[first], Some(_)) = (&self.acting()[..], self.one_of_two()) else {
            return tell!(self.story, "there are no owner and standby");
        };
        let second = 1 - first;
        if with_postgres {
            self.stop(second, RECOVERY);
        } else {
            tell!(self.story, "the disk of {} is slow", NAMES[second]);
            self.servers[second].disk.delay_calls(self.random.next(), SLOW);
        }
        let length = Duration::from_millis(self.random.below(6_000));
        self.pass(length).await;
        if !self.stop(first, RECOVERY * 2) {
            return;
        }
        if with_postgres {
            tell!(self.story, "the Postgres is lost with it, and {} goes on", NAMES[second]);
            self.host.reached = None;
            self.stopped[second] = Some(env::clock::now());
        }
        let begun = env::clock::now();
        while self.acting() != [second] {
            self.pass(LOOK).await;
            if env::clock::now().saturating_duration_since(begun) > RECOVERY {
                return tell!(self.story, "{} does not take over", NAMES[second]);
            }
        }
        self.servers[second].disk.delay_calls(0, Duration::ZERO);
        if with_postgres || self.random.coin() {
            self.replace().await;
        }
        if with_postgres && self.random.coin() {
            return self.take_back(first).await;
        }
        tell!(self.story, "the bucket is out of reach of {}, and {} goes on", NAMES[second], NAMES[first]);
        self.servers[second].bucket.set_gone(true);
        self.ill[second] = Some(env::clock::now() + RECOVERY);
        self.stopped[first] = Some(env::clock::now());
        self.is_busy = self.random.below(4) == 0;
        // In half of the worlds it is no standby again yet when it ends.
        let longest = if self.random.coin() { 500 } else { 8_000 };
        let length = Duration::from_millis(500 + self.random.below(longest));
        self.pass(length).await;
        if self.one_of_two().is_some() {
            self.lose_one(second).await;
        }
    }

    /// The former owner goes on, and is told to take the tenant back before it is a standby: what it has that the next
    /// owner did not have counts no more.
    async fn take_back(&mut self, former: usize) {
        tell!(self.story, "{} goes on, and has to take the tenant back", NAMES[former]);
        self.stopped[former] = Some(env::clock::now());
        self.pass(LOOK).await;
        let (server, tenant) = (&self.servers[former], self.tenant);
        let Some(manager) = server.manager() else { return };
        let taken = server.run("taking back", PATIENCE, async move { manager.attach_tenant(tenant).await }).await;
        let Some((Ok(()), timeline)) = taken.zip(server.timeline(tenant, self.timeline)) else {
            return tell!(self.story, "it does not");
        };
        let writers = self.writers();
        self.check(&timeline, &writers, self.host.committed()).await;
    }

    /// One server is lost with its disk, and the Postgres as well; the other one's process ends at the same moment, and
    /// is started again.
    async fn lose_one(&mut self, lost: usize) {
        let left = 1 - lost;
        let committed = self.host.committed();
        tell!(self.story, "{} and the Postgres are lost; committed to {committed}", NAMES[lost]);
        let writers = self.writers();
        // Nobody reaches it any more, and nobody waits for it.
        let nobody = Origin::new(TimelineId::generate(), BEGINS, Model::default(), Vec::new(), None);
        self.host = Host::new(nobody, 0, &self.is_calm);
        self.is_calm.store(true, Ordering::Relaxed);
        self.servers[lost].lose_disk().await;
        self.servers[left].kill(Survival::Synced).await;
        self.servers[left].bucket.set_gone(false);
        (self.stopped, self.down, self.ill) = ([None; 2], [None; 2], [None; 2]);
        if !self.servers[left].start().await {
            return violation!(self.story, "{} does not start", NAMES[left]);
        }
        if let Some(timeline) = self.owned_by_one_of(&[left]).await {
            let may_lack = self.servers[left].has_trimmed_early();
            self.check(&timeline, &writers, if may_lack { Lsn::INVALID } else { committed }).await;
        }
    }

    /// After a while in which nothing fails, both servers are lost with their disks, and the Postgres as well.
    pub(super) async fn lose_all_disks(&mut self) {
        self.pass(RECOVERY).await;
        let committed = self.host.committed();
        self.pass(TAIL * 3).await;
        if self.acting().len() != 1 || self.host.former.is_some() {
            return tell!(self.story, "there is no owner");
        }
        tell!(self.story, "all disks are lost; {committed} had been committed some seconds before");
        let writers = vec![self.host.origin.clone()];
        let nobody = Origin::new(TimelineId::generate(), BEGINS, Model::default(), Vec::new(), None);
        self.host = Host::new(nobody, 0, &self.is_calm);
        self.is_calm.store(true, Ordering::Relaxed);
        for server in &mut self.servers {
            server.lose_disk().await;
        }
        for server in &mut self.servers {
            if !server.start().await {
                return violation!(self.story, "{} does not start", server.name);
            }
        }
        if let Some(timeline) = self.owned_by_one_of(&[0, 1]).await {
            self.check(&timeline, &writers, committed).await;
        }
    }

    /// The timeline at the one of these servers that becomes the owner.
    async fn owned_by_one_of(&mut self, servers: &[usize]) -> Option<Timeline> {
        let begun = env::clock::now();
        let mut tended = begun;
        loop {
            env::clock::sleep(LOOK).await;
            let now = env::clock::now();
            if now.saturating_duration_since(tended) >= Duration::from_secs(1) {
                tended = now;
                for number in servers {
                    self.tend(*number).await;
                }
            }
            if let &[owner] = &self.acting()[..]
                && servers.contains(&owner)
                && let Some(timeline) = self.servers[owner].timeline(self.tenant, self.timeline)
            {
                return Some(timeline);
            }
            if env::clock::now().saturating_duration_since(begun) > RECOVERY {
                violation!(self.story, "nobody has become the owner");
                return None;
            }
        }
    }

    /// Those who may have written what there is.
    fn writers(&self) -> Vec<Origin> {
        std::iter::once(self.host.origin.clone()).chain(self.host.former.clone()).collect()
    }

    /// All that was committed is there, and what is there is what was written.
    async fn check(&self, timeline: &Timeline, writers: &[Origin], committed: Lsn) {
        let last = timeline.last_record_lsn();
        tell!(self.story, "what is left ends at {last}");
        if last < committed {
            return violation!(self.story, "committed to {committed}, and what is left ends at {last}");
        }
        let mut wrong = format!("what is left ends at {last}, where no record of its writer does");
        // Two writers may both end there, where a segment does.
        for origin in writers.iter().filter(|origin| origin.all_moments(last).contains(&last)) {
            match compare(timeline, origin, last).await {
                Ok(()) => return,
                Err(difference) => wrong = difference,
            }
        }
        violation!(self.story, "{wrong}");
    }
}

/// Compares all pages as of `last` with what one has written.
async fn compare(timeline: &Timeline, origin: &Origin, last: Lsn) -> Result<(), String> {
    let expected: BTreeMap<Key, Bytes> = origin.ask(|model| pages(model, last));
    let mut keys = KeySpaceBuilder::default();
    expected.keys().for_each(|key| keys.add_range(*key..key.next()));
    let found = timeline.get_vectored(&keys.build(), last, &context()).await;
    let found = found.map_err(|error| format!("what is left cannot be read: {error}"))?;
    for (key, page) in expected {
        if !found.get(&key).is_some_and(|found| found.as_ref().is_ok_and(|found| *found == page)) {
            return Err(format!("{key} at {last} is not what was written"));
        }
    }
    Ok(())
}
