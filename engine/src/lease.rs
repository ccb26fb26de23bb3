//! Leases: a server that has standbys renews an object in the bucket, from which they see that it is there.
//!
//! The bucket's safety does not depend on any of this: that is up to generations alone. A lease says when a standby may
//! take over by itself, and until when an owner may acknowledge WAL and serve what only it has. No clock is compared
//! with another one: an owner counts from before it has asked for a renewal ([`Term`]), a standby from after it has
//! seen that ([`Watch`]), and the owner stops earlier by a fifth.
//!
//! A renewal that arrives while a standby is about to take over must not leave both of them as owners. So a standby
//! first makes a *claim*, looks at the lease once more, and then *answers* the claim; an owner that has renewed its
//! lease looks for claims, and answers them, too. An answer is created by exactly one of them ([`objects`]). An owner
//! whose renewal the standby has not seen sees the claim, and its answer decides; one that has answered too late knows
//! that it has lost the tenant before it counts the renewal.

pub(crate) mod objects;
pub mod term;
pub mod watch;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pageserver_api::shard::TenantShardId;
use parking_lot::RwLock;
use tokio::sync::Notify;

use errors::StorageError;
pub use term::Term;
pub use watch::{Verdict, Watch};

/// A tenant and the generation in which it was held.
pub type Held = (TenantShardId, u32);

/// The lease of this server, as far as it has one. A server without one acts as an owner until it sees that it is not.
#[derive(Debug, Default)]
pub struct Lease {
    is_bound: AtomicBool,
    bound: RwLock<Bound>,
    /// Somebody should look whether a lease is asked for.
    look: Notify,
}

#[derive(Debug, Default)]
struct Bound {
    term: Option<Term>,
    /// What standbys have claimed with success, or are given, and since when that is known.
    lost: BTreeMap<Held, (Instant, Lost)>,
    /// Why the last attempt to renew it failed.
    error: Option<String>,
}

/// Why a tenant is another server's, or about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Lost {
    Claimed,
    /// It is handed over to this server.
    Given(String),
}

/// State of a server's lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It needs none.
    None,
    /// It holds for so long, unless it is renewed.
    Held(Duration),
    /// It does not hold, for this reason.
    Ended(String),
}

impl Lease {
    /// From now on this server acts as an owner only while its lease holds, which is not renewed yet.
    pub fn bind(&self, takeover_after: Duration) {
        self.bound.write().term.get_or_insert_with(|| Term::new(takeover_after));
        self.is_bound.store(true, Ordering::Release);
    }

    /// It needs no lease any more.
    pub fn release(&self) {
        self.is_bound.store(false, Ordering::Release);
        *self.bound.write() = Bound::default();
    }

    /// Whether this server needs a lease.
    pub fn is_bound(&self) -> bool {
        self.is_bound.load(Ordering::Acquire)
    }

    /// It was renewed, and no claim was lost; that was asked for at `asked`.
    pub fn renewed(&self, asked: Instant) {
        let mut bound = self.bound.write();
        bound.error = None;
        if let Some(term) = &mut bound.term {
            term.renewed(asked);
        }
    }

    /// It could not be renewed.
    pub fn failed(&self, reason: String) {
        self.bound.write().error = Some(reason);
    }

    /// A standby has this tenant now, or is about to take it.
    pub fn lose(&self, held: Held) {
        self.bound.write().lost.entry(held).or_insert_with(|| (env::clock::now(), Lost::Claimed));
    }

    /// This server hands a tenant over to another one: from now on it does not act as its owner.
    pub fn give(&self, held: Held, to: &str) {
        self.bound.write().lost.insert(held, (env::clock::now(), Lost::Given(to.to_owned())));
    }

    /// Whether a tenant is lost, or was given, in this generation.
    pub(crate) fn has_lost(&self, held: Held) -> bool {
        self.bound.read().lost.contains_key(&held)
    }

    /// What standbys have claimed with success, or are given, and for how long that has been known.
    pub fn lost(&self) -> Vec<(Held, Duration)> {
        let now = env::clock::now();
        let bound = self.bound.read();
        bound.lost.iter().map(|(held, (since, _))| (*held, now.saturating_duration_since(*since))).collect()
    }

    /// Whether this server has given a tenant to another one, which takes it at this moment.
    pub(crate) fn has_given(&self, held: Held) -> bool {
        matches!(self.bound.read().lost.get(&held), Some((_, Lost::Given(_))))
    }

    /// A tenant is held in a new generation, or not at all: what was lost before does not matter any more.
    pub fn forget(&self, tenant: TenantShardId) {
        self.bound.write().lost.retain(|(lost, _), _| *lost != tenant);
    }

    /// Fails unless this server may act as the owner of a tenant that it holds.
    ///
    /// # Errors
    /// [`StorageError::Unleased`].
    pub fn check(&self, (tenant_shard_id, generation): Held) -> Result<(), StorageError> {
        if !self.is_bound() || fault::planted(fault::Bug::OutliveLease) {
            return Ok(());
        }
        let bound = self.bound.read();
        let unleased = |reason| Err(StorageError::Unleased { tenant_shard_id, reason });
        match bound.lost.get(&(tenant_shard_id, generation)) {
            Some((_, Lost::Claimed)) => {
                let reason = "a standby takes it over, which had not seen the lease of this server renewed";
                return unleased(reason.to_owned());
            }
            Some((_, Lost::Given(to))) => return unleased(format!("it is handed over to server {to}")),
            None => {}
        }
        match bound.state(env::clock::now()) {
            LeaseState::Ended(reason) => unleased(reason),
            LeaseState::Held(_) | LeaseState::None => Ok(()),
        }
    }

    /// Its state.
    pub fn state(&self) -> LeaseState {
        self.bound.read().state(env::clock::now())
    }

    /// Has somebody look soon whether a lease is asked for.
    pub fn look_soon(&self) {
        self.look.notify_one();
    }

    /// Waits for [`Lease::look_soon`].
    pub(crate) async fn look(&self) {
        self.look.notified().await;
    }
}

impl Bound {
    fn state(&self, now: Instant) -> LeaseState {
        let Some(term) = &self.term else { return LeaseState::None };
        if let Some(left) = term.left(now) {
            return LeaseState::Held(left);
        }
        let because = self.error.as_ref().map(|error| format!(": {error}")).unwrap_or_default();
        LeaseState::Ended(match term.ended_for(now) {
            Some(ended) => format!("its lease ended {ended:.1?} ago, and could not be renewed{because}"),
            None => format!("its lease was not renewed yet since the start{because}"),
        })
    }
}

#[cfg(test)]
mod tests;
