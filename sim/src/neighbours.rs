//! Tenants have nothing to do with one another: what happens to one leaves the others as they are, also those that the
//! same server has.

use std::collections::BTreeMap;

use utils::id::TimelineId;

use crate::story::violation;
use crate::world::World;

/// How an owner has a tenant.
#[derive(Clone, Debug)]
pub struct Held {
    tenant: usize,
    /// Which of the owner's lives it is.
    life: u64,
    generation: u32,
    /// Its open timelines.
    instances: BTreeMap<TimelineId, u64>,
}

impl World {
    /// How the other tenants are held, those that are.
    pub fn others_than(&self, tenant: usize) -> Vec<Held> {
        (0..self.tenants.len()).filter(|other| *other != tenant).filter_map(|other| self.held(other)).collect()
    }

    fn held(&self, tenant: usize) -> Option<Held> {
        let (server, id) = (self.owner_of(tenant), self.tenants[tenant].id);
        let (life, manager) = (server.life()?, server.manager()?);
        let remote = manager.remote_of(id).filter(|remote| remote.fenced().is_none())?;
        let timelines = manager.timelines(id).ok()?;
        let instances = timelines.iter().map(|timeline| (timeline.timeline_id(), timeline.instance())).collect();
        Some(Held { tenant, life, generation: remote.generation(), instances })
    }

    /// Those that were held `before` something happened to another are held as before, unless their server has ended.
    pub fn check_others(&self, before: Vec<Held>) {
        for was in before.into_iter().filter(|was| self.owner_of(was.tenant).life() == Some(was.life)) {
            let now = self.held(was.tenant);
            // A late list of the bucket may have shown more timelines.
            let is_as_before = now.as_ref().is_some_and(|now| {
                let has = |(id, instance): (&TimelineId, &u64)| now.instances.get(id) == Some(instance);
                now.generation == was.generation && was.instances.iter().all(has)
            });
            if !is_as_before {
                violation!(self.story, "something happened to another tenant, and {was:?} became {now:?}");
            }
        }
    }

    /// No server has a timeline in a tenant other than that in which it was made.
    pub fn check_homes(&self) {
        for server in &self.servers {
            let Some(manager) = server.manager() else { continue };
            for (number, tenant) in self.tenants.iter().enumerate() {
                for timeline in manager.timelines(tenant.id).unwrap_or_default() {
                    let (id, home) = (timeline.timeline_id(), timeline.tenant_shard_id());
                    if home != tenant.id || self.homes.get(&id) != Some(&number) {
                        violation!(self.story, "{}: {id} is in tenant {number}, and is not its own", server.name);
                    }
                }
            }
        }
    }
}
