//! After each step: whoever is to have a tenant gets it, with all that was promised.

use std::time::Duration;

use engine::tenant::manager::{ManageError, TenantManager};
use simulated::platter::Survival;
use utils::id::TimelineId;

use crate::reader::Kept;
use crate::server::{PATIENCE, Server};
use crate::story::{tell, violation};
use crate::world::World;

impl World {
    /// Waits until each owner has its tenants with all their timelines, however often it has to try, and checks that
    /// nothing is missing that was promised.
    pub async fn settle_in(&mut self) {
        let began = env::clock::now();
        while let Err((tenant, missing)) = self.try_all().await {
            let since = self.weather.ends().map_or(began, |end| end.max(began));
            if env::clock::now().saturating_duration_since(since) > PATIENCE {
                let owner = self.owner_of(tenant).name;
                violation!(self.story, "{owner} does not have everything of tenant {tenant}: {missing}");
                return;
            }
            env::clock::sleep(Duration::from_secs(5)).await;
        }
        for tenant in 0..self.tenants.len() {
            self.check_promises(tenant);
        }
        self.note_said();
        self.servers.iter_mut().for_each(Server::note_journal);
        for (number, server) in self.servers.iter_mut().enumerate() {
            for known in self.known.values() {
                let tenant = &self.tenants[known.tenant];
                // Where WAL is received, only the owner is told from where, and keeps that itself.
                if tenant.owner == number || !self.setting.is_postgres {
                    server.feed(tenant.id, &known.origin);
                }
            }
        }
    }

    /// Tries once for each tenant, whatever came of the others.
    async fn try_all(&mut self) -> Result<(), (usize, String)> {
        for server in self.servers.iter_mut().filter(|server| server.is_dying()) {
            server.kill(Survival::Torn(env::random::u64())).await;
        }
        let mut done = Ok(());
        for tenant in 0..self.tenants.len() {
            done = done.and(self.try_settle_in(tenant).await.map_err(|missing| (tenant, missing)));
        }
        done
    }

    async fn try_settle_in(&mut self, tenant: usize) -> Result<(), String> {
        let (id, owner) = (self.tenants[tenant].id, self.tenants[tenant].owner);
        if !self.servers[owner].is_alive() && !self.servers[owner].start().await {
            return Err("it does not start".to_owned());
        }
        let manager = self.servers[owner].manager().ok_or("it has ended")?;
        self.try_attach(tenant, &manager).await?;
        let missing = self.missing(tenant, &manager);
        if missing.is_none() {
            return Ok(());
        }
        let again = manager.clone();
        let looked = self.servers[owner].run("another look", PATIENCE, async move {
            let reopened = again.reopen(id).await?;
            Ok::<_, ManageError>(reopened + again.look_again(id).await?)
        });
        let looked = looked.await;
        self.missing(tenant, &manager).map_or(Ok(()), |missing| Err(format!("{missing}; last look: {looked:?}")))
    }

    /// An owner that was fenced, or was told to take the tenant back, does not know by itself that it is to have it.
    async fn try_attach(&mut self, tenant: usize, manager: &TenantManager) -> Result<(), String> {
        let (id, manager) = (self.tenants[tenant].id, manager.clone());
        let is_lost = manager.remote_of(id).is_none_or(|remote| remote.fenced().is_some());
        if !std::mem::take(&mut self.tenants[tenant].is_to_attach) && !is_lost {
            return Ok(());
        }
        let owner = self.owner_of(tenant);
        let attached = owner.run("attachment of a tenant", PATIENCE, async move { manager.attach_tenant(id).await });
        match attached.await {
            Some(Ok(())) => {
                tell!(self.story, "{} has attached tenant {tenant}", owner.name);
                Ok(())
            }
            other => {
                self.tenants[tenant].is_to_attach = true;
                Err(format!("not attached: {other:?}"))
            }
        }
    }

    /// What the owner of a tenant does not have of it, if so.
    fn missing(&self, tenant: usize, manager: &TenantManager) -> Option<String> {
        let id = self.tenants[tenant].id;
        let is_missing = |timeline: &TimelineId| manager.get(id, *timeline).is_err();
        let wanted = self.known.iter().filter(|(_, known)| known.tenant == tenant && known.kept != Kept::Perhaps);
        let missing: Vec<TimelineId> = wanted.map(|(timeline, _)| *timeline).filter(is_missing).collect();
        let mut broken = manager.broken();
        broken.retain(|(of, ..)| *of == id);
        let is_complete = missing.is_empty() && broken.is_empty();
        (!is_complete).then(|| format!("{missing:?}; could not be opened: {broken:?}"))
    }
}
