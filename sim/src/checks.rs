//! What must hold after each step: nothing that was said or promised is lost, and no two servers have the same tenant.

use engine::tenant::timeline::Timeline;
use utils::id::TimelineId;

use crate::reader::{Kept, Promise, Promises};
use crate::story::{tell, violation};
use crate::world::{Said, World};

/// Bytes of a page in a cache.
const PAGE: u64 = 8192;

impl World {
    /// Notes what the owners say, which must not become less.
    pub fn note_said(&mut self) {
        for (id, known) in &mut self.known {
            let tenant = &self.tenants[known.tenant];
            let server = &self.servers[tenant.owner];
            let Some(timeline) = server.timeline(tenant.id, *id) else { continue };
            let (durable, cutoff) = (timeline.disk_consistent_lsn(), timeline.window().cutoff);
            // After a restart numbers begin again.
            let now = Said { durable, cutoff, instance: server.life().zip(Some(timeline.instance())) };
            let before = std::mem::replace(&mut known.said[tenant.owner], now);
            if now.durable < before.durable {
                violation!(self.story, "{id} was on the disk up to {}, and is to {}", before.durable, now.durable);
            }
            if now.cutoff < before.cutoff && now.instance == before.instance {
                violation!(self.story, "the cutoff of {id} was {}, and is {}", before.cutoff, now.cutoff);
            }
        }
    }

    /// What was promised of a tenant is there; what may have been lost, and was, is not asked for unless it is there
    /// again.
    pub fn check_promises(&mut self, tenant: usize) {
        let (name, Some(manager)) = (self.tenants[tenant].id, self.owner_of(tenant).manager()) else { return };
        for (id, known) in
            self.lost.extract_if(.., |id, known| known.tenant == tenant && manager.get(name, *id).is_ok())
        {
            tell!(self.story, "timeline {id} is there again");
            self.known.entry(id).or_insert(known).may_lack = true;
        }
        let own = self.known.iter().filter(|(_, known)| known.tenant == tenant);
        let lost: Vec<TimelineId> = own
            .filter(|(id, known)| known.kept == Kept::Perhaps && manager.get(name, **id).is_err())
            .map(|(id, _)| *id)
            .collect();
        for id in lost {
            tell!(self.story, "timeline {id}, which nobody was promised, is not there");
            self.lost.extend(self.known.remove_entry(&id));
        }
        for id in self.deleted.iter().filter(|id| manager.get(name, **id).is_ok()) {
            violation!(self.story, "timeline {id} was deleted, and is there again");
        }
        for (id, known) in &self.known {
            let Ok(timeline) = manager.get(name, *id) else { continue };
            let (last, promised) = (timeline.last_record_lsn(), known.origin.acknowledged());
            if last < promised {
                violation!(self.story, "timeline {id} ends at {last}, but everything to {promised} was acknowledged");
            }
            self.check_holds(&timeline, &known.promises);
        }
    }

    fn check_holds(&self, timeline: &Timeline, promises: &Promises) {
        let id = timeline.timeline_id();
        let holds = timeline.holds();
        let is_there = |promise: &Promise| holds.iter().any(|hold| hold.lsn == promise.lsn);
        let now = env::clock::now();
        promises.lock().retain(|promise| {
            let has_ended = promise.until.is_some_and(|until| until <= now);
            if is_there(promise) || has_ended && promise.name.is_none() {
                return !has_ended;
            }
            if promise.kept != Kept::Perhaps {
                violation!(self.story, "timeline {id} has lost a hold or lease: {promise:?}");
            }
            false
        });
    }

    /// No two servers believe at once that a tenant is theirs and that they know so.
    pub fn check_generations(&self) {
        for (number, tenant) in self.tenants.iter().enumerate() {
            let [one, other] = self.servers.each_ref().map(|server| {
                let remote = server.manager()?.remote_of(tenant.id)?;
                Some(remote.generation())
            });
            if let (Some(one), Some(other)) = (one, other)
                && one == other
            {
                violation!(self.story, "both servers have tenant {number} in generation {one}");
            }
        }
    }

    /// No server's caches take more memory than they may.
    pub fn check_memory(&self) {
        for server in &self.servers {
            let Some(manager) = server.manager() else { continue };
            let (resources, most) = (&manager.conf().resources, self.setting.memory);
            let (blocks, pages) = (resources.blocks.memory_by_use(), resources.pages.bytes());
            if blocks.iter().map(|(_, bytes)| bytes).sum::<u64>() > most.blocks {
                violation!(self.story, "{} may have {} bytes of blocks, and has {blocks:?}", server.name, most.blocks);
            }
            if resources.kept.used() > most.values {
                violation!(self.story, "{} may keep {} bytes of values, and has more", server.name, most.values);
            }
            if pages > most.pages as u64 * PAGE {
                violation!(self.story, "{} may have {} pages, and has {pages} bytes", server.name, most.pages);
            }
        }
    }
}
