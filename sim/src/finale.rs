//! The end of a run: all faults end, and then within a bounded time everything is served, nothing is owed, and nothing
//! is lost with the disks. A day later nothing is left in the bucket that nobody needs.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

use simulated::bucket::Op;
use utils::id::TimelineId;

use crate::network::Link;
use crate::plan::Setting;
use crate::reader::Kept;
use crate::server::PATIENCE;
use crate::story::{tell, violation};
use crate::world::World;

/// As of how many moments of each timeline everything is read in the end, twice.
const MOMENTS: usize = 16;

/// How often the bucket may be asked for each tenant on a day on which nothing happens.
const IDLE_CALLS: f64 = 10.0;
const DAY: Duration = Duration::from_secs(24 * 3600);

impl World {
    /// See the module's documentation.
    pub async fn end(&mut self, idle: Duration) {
        tell!(self.story, "nothing fails any more");
        self.clear_up();
        self.known.values().for_each(|known| known.origin.commit());
        self.settle_in().await;
        self.delete_again().await;
        self.become_quiet().await;
        self.read_everything().await;
        self.wait_for_leftovers_to_go().await;
        if !idle.is_zero() {
            self.stay_idle(idle).await;
        }
        if self.story.broken_promise().is_some() {
            return;
        }
        // One that a list did not name may be found by the next start.
        let there: BTreeSet<TimelineId> = self.known.keys().copied().collect();
        for number in 0..self.servers.len() {
            self.servers[number].lose_disk().await;
            self.forget_disk(number);
        }
        // Marks of deletion, and what nothing names, are old enough to go then.
        env::clock::sleep(DAY + PATIENCE).await;
        self.settle_in().await;
        for (id, known) in self.known.iter().filter(|(id, _)| there.contains(id)) {
            let last = self.timeline(*id).map(|timeline| timeline.disk_consistent_lsn());
            if last != Some(known.origin.last()) {
                violation!(self.story, "{id} was in the bucket to {}, and now ends at {last:?}", known.origin.last());
            }
        }
        self.become_quiet().await;
        // All is old, and goes but for what is kept on purpose.
        env::clock::sleep(self.setting.quiet_after_attach).await;
        for tenant in 0..self.tenants.len() {
            self.collect_garbage(tenant).await;
        }
        self.become_quiet().await;
        self.read_everything().await;
        self.check_bucket().await;
        let [one, other] = &mut self.servers;
        tokio::join!(one.shut_down(), other.shut_down());
    }

    fn clear_up(&mut self) {
        self.weather.clear();
        self.is_calm.store(true, Ordering::Relaxed);
        for server in &self.servers {
            server.bucket.clear_plan();
            server.bucket.thaw_lists();
            server.bucket.slow_reads(0, Duration::ZERO);
            server.bucket.set_gone(false);
            server.disk.fail(None);
            if let Some(process) = server.process() {
                process.set_clock(Duration::ZERO, Duration::ZERO);
                process.proceed();
            }
        }
    }

    /// Nobody does anything for `length`, and the servers ask the bucket for next to nothing.
    async fn stay_idle(&self, length: Duration) {
        // What is looked at once more after some time, such as the lists of the bucket; and history that goes by age.
        let Setting { pitr_interval, gc_period, quiet_after_attach, .. } = self.setting;
        env::clock::sleep(PATIENCE + pitr_interval + gc_period * 2 + quiet_after_attach).await;
        let before = self.calls();
        env::clock::sleep(length).await;
        let calls: Vec<(Op, u64)> =
            self.calls().into_iter().zip(before).map(|((op, now), (_, was))| (op, now - was)).collect();
        let (all, days) = (calls.iter().map(|(_, count)| count).sum::<u64>(), length.as_secs_f64() / DAY.as_secs_f64());
        tell!(self.story, "nothing happened for {length:?}, and the bucket was asked {all} times: {calls:?}");
        if all as f64 > IDLE_CALLS * days * self.tenants.len() as f64 {
            violation!(
                self.story,
                "nobody did anything for {length:?}, but the bucket was asked {all} times: {calls:?}"
            );
        }
    }

    /// How often the bucket was asked, by both servers.
    fn calls(&self) -> Vec<(Op, u64)> {
        let of = |op: Op| self.servers.iter().map(|server| server.bucket.calls(op)).sum();
        Op::ALL.iter().map(|op| (*op, of(*op))).collect()
    }

    /// Waits until everything is in the bucket and nothing is left to be done.
    async fn become_quiet(&mut self) {
        let began = env::clock::now();
        while let Some(owed) = self.owed() {
            if env::clock::now().saturating_duration_since(began) > PATIENCE {
                violation!(self.story, "nothing fails, but {PATIENCE:?} later: {owed}");
                return;
            }
            env::clock::sleep(Duration::from_secs(1)).await;
        }
        for known in self.known.values_mut() {
            known.kept = Kept::InBucket;
        }
        tell!(self.story, "everything is in the bucket after {:?}", env::clock::now().saturating_duration_since(began));
    }

    /// What the owner still owes, if it does.
    fn owed(&self) -> Option<String> {
        for (id, known) in &self.known {
            let Some(timeline) = self.timeline(*id) else { return Some(format!("{id} is not there")) };
            let (info, last) = (timeline.info(), known.origin.last());
            if info.last_record_lsn != last {
                return Some(format!("{id} ends at {}, not at {last}", info.last_record_lsn));
            }
            if info.remote_consistent_lsn != Some(last) {
                return Some(format!("{id} is in the bucket to {:?}, not to {last}", info.remote_consistent_lsn));
            }
            if info.upload_layers > 0 || info.replaced_layers > 0 || info.l0_layers >= 4 {
                return Some(format!(
                    "{id} has {} layers to upload ({:?}), {} replaced ones, {} in L0 ({:?})",
                    info.upload_layers, info.upload_error, info.replaced_layers, info.l0_layers, info.compaction_error
                ));
            }
        }
        None
    }

    async fn read_everything(&mut self) {
        let mut moments = 0;
        for (id, known) in self.known.clone() {
            let Some(timeline) = self.timeline(id) else { continue };
            let (owner, number) = (self.owner_of(known.tenant), self.tenants[known.tenant].owner);
            let subject = self.subject(&known, number);
            let read = owner.run("last reads", PATIENCE, async move { subject.read_all(&timeline, MOMENTS).await });
            match read.await {
                Some(read) => moments += read,
                None => violation!(self.story, "{id} is not read in time"),
            }
            let (Some(timeline), subject) = (self.timeline(id), self.subject(&known, number)) else { continue };
            if let Some(stream) = owner.connect(Link::GOOD, env::random::u64()) {
                subject.ask_last(stream, &timeline).await;
            }
        }
        tell!(self.story, "read everything as of {moments} moments");
    }
}
