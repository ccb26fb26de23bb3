//! Orders about where tenants are to be: gives them, and follows those that this server has to do with.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;

use super::placing::OrderStatus;
use super::receivers::{Receivers, Receiving};
use super::{ManageError, TenantManager};
use crate::placement::{Listing, Order, Placements, Side, Stage, What};
use crate::tenant::remote::newest;
use errors::StorageError;

/// It is looked for orders after so many intervals of a lease,
const LOOK_INTERVALS: u32 = 5;
/// and so often in one while there is one that this server has to do with.
const LOOKS: u32 = 4;
/// How often it is looked what the other server says.
pub(super) const WORDS: Duration = Duration::from_millis(100);

/// Orders by tenant, with their numbers, so that each is read once.
type Known = BTreeMap<TenantShardId, (u32, Order)>;

impl TenantManager {
    /// Has `receivers` stop and go on where tenants are handed over. Only the first call counts.
    pub fn hand_over_with(&self, receivers: Box<dyn Receivers>) {
        // See above.
        let _ = self.inner.placing.receivers.set(Receiving(receivers));
    }

    fn placements(&self) -> Result<Placements, ManageError> {
        let conf = self.inner.conf;
        let storage = conf.remote_storage.as_ref().filter(|_| !conf.lease.interval.is_zero());
        let reason = "tenants move between servers that share a bucket, and have a lease_interval";
        storage.map(Placements::new).ok_or_else(|| ManageError::Precondition(reason.to_owned()))
    }

    /// Orders that server `to` is to own a tenant, or to be a standby of it.
    ///
    /// # Errors
    /// [`ManageError::Conflict`] if the server owns it already, or somebody else gives an order at the same time.
    pub async fn order(
        &self,
        id: TenantShardId,
        what: What,
        to: &str,
        timeout: Duration,
    ) -> Result<Order, ManageError> {
        let (placements, conf) = (self.placements()?, self.inner.conf);
        let Some(storage) = &conf.remote_storage else { return Err(self.no_tenant(id)) };
        let found = newest(storage, id, 0).await?.filter(|found| !found.is_deleted);
        let Some(found) = found else {
            return Err(ManageError::NotFound(format!("tenant {id} is not in the bucket {}", storage.url())));
        };
        let is_owner = found.holder.server == to || conf.server.is(to) && conf.server.is(&found.holder.server);
        if is_owner {
            return Err(ManageError::Conflict(format!("server {to} owns tenant {id} already")));
        }
        if what == What::Move && placements.is_drained(to).await? {
            return Err(drained(to));
        }
        let order = Order::new(what, (&found.holder.server, to), found.generation, timeout);
        if !placements.give(id, &order).await? {
            return Err(ManageError::Conflict(format!("somebody else gives an order about tenant {id}: try again")));
        }
        self.inner.placing.look.notify_one();
        Ok(order)
    }

    /// How the newest order about a tenant stands, if there is one; and has this server look for orders.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn order_status(&self, id: TenantShardId) -> Result<Option<OrderStatus>, ManageError> {
        let placements = self.placements()?;
        let Some(storage) = &self.inner.conf.remote_storage else { return Ok(None) };
        self.inner.placing.look.notify_one();
        let number = placements.newest(id).await?;
        let Some(order) = placements.order(id, number).await? else { return Ok(None) };
        let target = placements.word(id, Side::Target, &order).await?;
        let giver = placements.word(id, Side::Owner, &order).await?;
        let Some(found) = newest(storage, id, order.generation).await? else { return Ok(None) };
        Ok(Some(OrderStatus { order, generation: found.generation, owner: found.holder.server, target, giver }))
    }

    /// Says in the bucket whether a server is to own nothing, and to take nothing over.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn set_drained(&self, server: &str, is_drained: bool) -> Result<(), ManageError> {
        self.placements()?.set_drained(server, is_drained).await?;
        if self.inner.conf.server.is(server) {
            self.inner.placing.is_drained.store(is_drained, Ordering::Relaxed);
        }
        self.inner.placing.look.notify_one();
        Ok(())
    }

    /// Fails if this server is to own nothing more. Asks the bucket.
    ///
    /// # Errors
    /// [`ManageError::Precondition`] if so, or those of the bucket.
    pub async fn check_not_drained(&self) -> Result<(), ManageError> {
        if self.look_if_drained().await? { Err(drained(&self.inner.conf.server.id)) } else { Ok(()) }
    }

    /// Whether this server is to own nothing more, as the bucket says.
    pub(super) async fn look_if_drained(&self) -> Result<bool, StorageError> {
        let own = &self.inner.conf.server.id;
        match self.placements() {
            Ok(placements) if !own.is_empty() => placements.is_drained(own).await,
            _ => Ok(false),
        }
    }

    /// Whether this server is to own nothing more, as far as it has seen.
    pub fn is_drained(&self) -> bool {
        self.inner.placing.is_drained.load(Ordering::Relaxed)
    }

    /// Follows orders until shutdown.
    pub(super) async fn follow_orders(self) {
        let Ok(placements) = self.placements() else { return };
        let mut known = Known::new();
        tokio::select! {
            () = self.inner.may_follow.cancelled() => {}
            () = self.inner.cancel.cancelled() => return,
        }
        let interval = self.inner.conf.lease.interval;
        // Whoever was drained is so after a restart.
        let mut is_asked = true;
        loop {
            // A server that has nothing to do with others asks the bucket nothing.
            let is_one_of_several = self.inner.conf.resources.lease.is_bound() || !self.standbys().is_empty();
            let is_busy = (is_one_of_several || is_asked) && self.look_for_orders(&placements, &mut known).await;
            let pause = if is_busy { interval / LOOKS } else { interval * LOOK_INTERVALS };
            is_asked = tokio::select! {
                () = env::clock::sleep(pause) => false,
                () = self.inner.placing.look.notified() => true,
                () = self.inner.cancel.cancelled() => return,
            };
        }
    }

    /// Looks once. Returns whether there is something for this server to do.
    async fn look_for_orders(&self, placements: &Placements, known: &mut Known) -> bool {
        let listing = match self.in_time(placements.list()).await {
            Ok(listing) => listing,
            Err(error) => {
                tracing::debug!("it is not known where tenants are to be: {error}");
                return false;
            }
        };
        let is_drained = listing.drained.iter().any(|server| self.inner.conf.server.is(server));
        self.inner.placing.is_drained.store(is_drained, Ordering::Relaxed);
        if let Err(error) = self.read_orders(placements, listing, known).await {
            tracing::debug!("it is not known where tenants are to be: {error}");
        }
        let all = known.iter().filter(|(_, (_, order))| order.left().is_some());
        let nonces: HashSet<&String> = known.values().map(|(_, order)| &order.nonce).collect();
        self.inner.placing.over.lock().retain(|nonce| nonces.contains(nonce));
        let mut is_busy = false;
        for (id, (_, order)) in all {
            let Some(side) = self.side(*id, order) else { continue };
            if self.inner.placing.over.lock().contains(&order.nonce) {
                continue;
            }
            is_busy = true;
            if self.inner.placing.begun.lock().insert(order.nonce.clone()) {
                let (manager, id, order, placements) = (self.clone(), *id, order.clone(), placements.clone());
                drop(env::spawn::task("an order", async move { manager.obey(&placements, id, order, side).await }));
            }
        }
        is_busy
    }

    async fn read_orders(
        &self,
        placements: &Placements,
        listing: Listing,
        known: &mut Known,
    ) -> Result<(), StorageError> {
        known.retain(|id, _| listing.orders.contains_key(id));
        for (id, number) in listing.orders {
            // A list may lag.
            if known.get(&id).is_none_or(|(known, _)| *known < number)
                && let Some(order) = self.in_time(placements.order(id, number)).await?
            {
                known.insert(id, (number, order));
            }
        }
        Ok(())
    }

    /// What this server has to do with an order.
    fn side(&self, id: TenantShardId, order: &Order) -> Option<Side> {
        if self.inner.conf.server.is(&order.to) {
            return Some(Side::Target);
        }
        let remote = self.remote_of(id).filter(|remote| remote.generation() == order.generation)?;
        (order.what == What::Move && remote.fenced().is_none()).then_some(Side::Owner)
    }

    async fn obey(&self, placements: &Placements, id: TenantShardId, order: Order, side: Side) {
        let outcome = match side {
            Side::Target => self.come(placements, id, &order).await,
            Side::Owner => self.go(placements, id, &order).await,
        };
        self.inner.placing.over.lock().insert(order.nonce.clone());
        self.inner.placing.begun.lock().remove(&order.nonce);
        let Err(error) = outcome else { return };
        tracing::warn!(tenant = %id, from = order.from, to = order.to, "the tenant was not handed over: {error}");
        let word = order.word(Stage::Failed, Some(error.to_string()));
        if let Err(error) = self.in_time(placements.say(id, side, &word)).await {
            tracing::info!(tenant = %id, "that could not be said in the bucket: {error}");
        }
    }
}

fn drained(server: &str) -> ManageError {
    ManageError::Precondition(format!(
        "server {server} is drained, and owns nothing more: `pagectl fleet fill {server}` takes it back"
    ))
}

/// Why an order was given up whose time is over.
pub(super) fn out_of_time(what: &str) -> ManageError {
    ManageError::Busy(format!("{what}: given up, as the time for it is over"))
}
