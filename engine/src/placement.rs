//! Orders about where tenants are to be, and what the two servers of a handover say to each other, in the bucket
//! (decision 0037).
//!
//! Nothing of this decides who owns a tenant: that is up to its generations. An order names the generation of the owner
//! that is to hand the tenant over, and means nothing as soon as there is another one, or its time is over. The server
//! that is to have the tenant, and its owner, each write one *word* about an order, that says how far they are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use pageserver_api::shard::TenantShardId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use errors::{ErrorKind, StorageError};
use remote_storage::{Creation, RemotePath, RemoteStorage, RequestClass};

/// Upper bound of an object's size in bytes.
const MAX_LEN: u64 = 64 << 10;
/// What is left of an error's text.
const SAID_MAX: usize = 1000;

/// What is to be done with a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum What {
    /// A server is to own it.
    Move,
    /// A server is to be a standby of it.
    Follow,
}

/// An order: the newest one of a tenant counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    /// A random value that distinguishes it from all others.
    pub nonce: String,
    /// What is to be done.
    pub what: What,
    /// The id of the server that is to have the tenant.
    pub to: String,
    /// The id of the server that owns it.
    pub from: String,
    /// The generation in which that holds it.
    pub generation: u32,
    /// It is given up then: seconds since 1970.
    pub until: u64,
}

/// How far a server is with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stage {
    /// The target has become a standby.
    Following,
    /// The target waits for nothing but the owner.
    Ready,
    /// The owner acts as the owner no more, and never again in this generation.
    Given,
    /// It was given up.
    Failed,
}

/// What a server says of an order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Word {
    /// That of the order.
    pub nonce: String,
    /// How far it is.
    pub stage: Stage,
    /// Why it was given up.
    #[serde(default)]
    pub error: Option<String>,
}

/// The two that have to do with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Target,
    Owner,
}

impl Order {
    /// A new one that is given up after `timeout`.
    pub(crate) fn new(what: What, (from, to): (&str, &str), generation: u32, timeout: Duration) -> Self {
        let (from, to, until) = (from.to_owned(), to.to_owned(), now() + timeout.as_secs().max(1));
        Self { nonce: format!("{:016x}", env::random::u64()), what, to, from, generation, until }
    }

    /// For how long it holds.
    pub fn left(&self) -> Option<Duration> {
        let left = self.until.saturating_sub(now());
        (left > 0).then(|| Duration::from_secs(left))
    }

    /// A word about it.
    pub(crate) fn word(&self, stage: Stage, error: Option<String>) -> Word {
        let error = error.map(|text| text.chars().take(SAID_MAX).collect());
        Word { nonce: self.nonce.clone(), stage, error }
    }
}

fn now() -> u64 {
    env::clock::system_now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// What a list of the objects says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The number of the newest order of each tenant.
    pub(crate) orders: BTreeMap<TenantShardId, u32>,
    /// Servers that are to own nothing.
    pub(crate) drained: BTreeSet<String>,
}

impl Listing {
    fn note(&mut self, path: &str) {
        let mut parts = path.split('/').skip(1);
        match (parts.next(), parts.next(), parts.next()) {
            (Some("drained"), Some(server), None) => drop(self.drained.insert(server.to_owned())),
            (Some("tenants"), Some(tenant), Some(name)) => {
                let number = name.strip_prefix("order-").and_then(|digits| u32::from_str_radix(digits, 16).ok());
                let (Ok(tenant), Some(number)) = (tenant.parse(), number) else { return };
                let newest = self.orders.entry(tenant).or_insert(number);
                *newest = number.max(*newest);
            }
            _ => {}
        }
    }
}

/// The objects.
#[derive(Clone, Debug)]
pub(crate) struct Placements {
    storage: RemoteStorage,
}

fn encoded(content: &impl Serialize) -> Result<Bytes, StorageError> {
    serde_json::to_vec(content).map(Bytes::from).map_err(|error| StorageError::Internal(error.to_string()))
}

impl Placements {
    pub(crate) fn new(storage: &RemoteStorage) -> Self {
        Self { storage: storage.clone() }
    }

    /// `None` if there is nothing, or nothing that makes sense.
    async fn get<T: DeserializeOwned>(&self, path: &RemotePath) -> Result<Option<T>, StorageError> {
        match self.storage.get(RequestClass::Control, path, MAX_LEN).await {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).ok()),
            Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists them all.
    pub(crate) async fn list(&self) -> Result<Listing, StorageError> {
        let mut listing = Listing::default();
        let listed = self.storage.list(RequestClass::Control, &RemotePath::placements()).await?;
        listed.iter().for_each(|object| listing.note(&object.path.to_string()));
        Ok(listing)
    }

    /// The number of a tenant's newest order; 0 if there is none.
    pub(crate) async fn newest(&self, tenant: TenantShardId) -> Result<u32, StorageError> {
        let mut listing = Listing::default();
        let listed = self.storage.list(RequestClass::Control, &RemotePath::placement(&tenant)).await?;
        listed.iter().for_each(|object| listing.note(&object.path.to_string()));
        Ok(listing.orders.get(&tenant).copied().unwrap_or(0))
    }

    /// An order.
    pub(crate) async fn order(&self, tenant: TenantShardId, number: u32) -> Result<Option<Order>, StorageError> {
        self.get(&RemotePath::order(&tenant, number)).await
    }

    /// Gives an order, unless somebody else gives one at the same time. The one before the last one goes.
    pub(crate) async fn give(&self, tenant: TenantShardId, order: &Order) -> Result<bool, StorageError> {
        let newest = self.newest(tenant).await?;
        let path = RemotePath::order(&tenant, newest.saturating_add(1));
        if self.storage.create(RequestClass::Control, &path, encoded(order)?).await? == Creation::Existed {
            return Ok(false);
        }
        if newest > 1 {
            self.storage.delete(&[RemotePath::order(&tenant, newest - 1)]).await?;
        }
        Ok(true)
    }

    /// What a server has said of an order.
    pub(crate) async fn word(
        &self,
        tenant: TenantShardId,
        side: Side,
        order: &Order,
    ) -> Result<Option<Word>, StorageError> {
        let word: Option<Word> = self.get(&Self::path(tenant, side)).await?;
        Ok(word.filter(|word| word.nonce == order.nonce))
    }

    /// Says something of an order: one attempt.
    pub(crate) async fn say(&self, tenant: TenantShardId, side: Side, word: &Word) -> Result<(), StorageError> {
        self.storage.sign(RequestClass::Control, &Self::path(tenant, side), encoded(word)?).await
    }

    fn path(tenant: TenantShardId, side: Side) -> RemotePath {
        RemotePath::placement_word(&tenant, if side == Side::Target { "target" } else { "owner" })
    }

    /// Whether a server is to own nothing.
    pub(crate) async fn is_drained(&self, server: &str) -> Result<bool, StorageError> {
        Ok(self.storage.head(RequestClass::Control, &RemotePath::drained(server)).await?.is_some())
    }

    /// Says whether a server is to own nothing.
    pub(crate) async fn set_drained(&self, server: &str, is_drained: bool) -> Result<(), StorageError> {
        let path = RemotePath::drained(server);
        match is_drained {
            true => self.storage.put(RequestClass::Control, &path, Bytes::from_static(b"{}")).await,
            false => self.storage.delete(&[path]).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_tenant_the_newest_order_counts() {
        let (tenant, mut listing) = ("0".repeat(31) + "1", Listing::default());
        for name in ["order-00000002", "order-0000000a", "order-00000009", "target", "order-x"] {
            listing.note(&format!("placements/tenants/{tenant}/{name}"));
        }
        for path in ["placements/drained/a", "placements/drained/a/b", "placements/other/c", "placements/tenants/x/y"] {
            listing.note(path);
        }
        assert_eq!(listing.orders, BTreeMap::from([(tenant.parse().unwrap(), 10)]));
        assert_eq!(listing.drained, BTreeSet::from(["a".to_owned()]));
    }

    #[test]
    fn an_order_ends_by_itself() {
        let order = Order::new(What::Move, ("a", "b"), 3, Duration::from_secs(60));
        assert!(order.left().is_some_and(|left| left > Duration::from_secs(50)));
        assert_eq!(Order { until: now(), ..order.clone() }.left(), None);
        let word = order.word(Stage::Failed, Some("x".repeat(5000)));
        assert_eq!((word.nonce, word.error.map(|error| error.len())), (order.nonce, Some(SAID_MAX)));
    }
}
