//! The lease of this server in the bucket: whether there is to be one, renewals, and answers to claims.

use std::time::{Duration, Instant};

use crate::config::{LeasePolicy, PageServerConf};
use crate::lease::objects::{Objects, Renewal};
use crate::lease::{Lease, LeaseState};
use errors::StorageError;
use metrics::METRICS;

/// How many intervals pass until standbys have to ask again.
const FORGET_INTERVALS: u32 = 150;

/// Keeps the lease.
pub(super) struct Keeper {
    objects: Objects,
    pub(super) policy: LeasePolicy,
    pub(super) lease: std::sync::Arc<Lease>,
    renewal: Renewal,
    /// Claims up to this one are answered.
    answered: u32,
    /// When standbys had to ask again, or a renewal failed, which may still take effect.
    forgot: Instant,
    /// Whether it is known that the lease holds, or does not.
    held: Option<bool>,
}

impl Keeper {
    /// The keeper of a server that may need a lease. Looks whether it does: it must before it serves anything.
    pub(super) async fn begin(conf: &'static PageServerConf) -> Option<Self> {
        let policy = conf.lease;
        let storage = conf.remote_storage.as_ref()?;
        if policy.interval.is_zero() || conf.server.id.is_empty() {
            return None;
        }
        let objects = Objects::new(storage, &conf.server.id);
        let renewal = Renewal {
            server: conf.server.id.clone(),
            host: conf.server.host.clone(),
            life: format!("{:016x}", env::random::u64()),
            renewal: 0,
            takeover_after_ms: u64::try_from(policy.takeover_after.as_millis()).unwrap_or(u64::MAX),
        };
        let (lease, forgot) = (std::sync::Arc::clone(&conf.resources.lease), env::clock::now());
        let keeper = Self { objects, policy, lease, renewal, answered: 0, forgot, held: None };
        let is_needed = match keeper.policy.keep {
            true => true,
            // Without an answer it is not known, and this server does nothing that needs a lease before it has one.
            false => keeper.is_asked_for().await.unwrap_or(true),
        };
        if is_needed {
            keeper.lease.bind(keeper.policy.takeover_after);
        }
        Some(keeper)
    }

    /// Whether there is a lease already, which standbys believe in, or one is asked for.
    async fn is_asked_for(&self) -> Result<bool, StorageError> {
        let limit = self.policy.takeover_after / 2;
        let asked = async { Ok(self.objects.read().await?.is_some() || self.objects.is_wanted().await?) };
        env::clock::timeout(limit, asked).await.unwrap_or_else(|_| Err(late(limit)))
    }

    /// Looks whether a lease is asked for, and keeps one from then on.
    pub(super) async fn bind_if_asked(&mut self) {
        if self.lease.is_bound() {
            // This server has just taken a tenant over, and may not be its only standby.
            self.forgot = env::clock::now();
            return;
        }
        // Whoever wants it asks again.
        if self.is_asked_for().await.unwrap_or(false) {
            tracing::info!("a standby asks for a lease: it is kept from now on");
            self.forgot = env::clock::now();
            self.lease.bind(self.policy.takeover_after);
        }
    }

    /// One attempt to renew the lease, from `asked` on.
    pub(super) async fn renew(&mut self, asked: Instant) {
        let limit = self.policy.takeover_after / 4;
        let renewed = env::clock::timeout(limit, self.attempt()).await.unwrap_or_else(|_| Err(late(limit)));
        match renewed {
            Ok(()) if fault::planted(fault::Bug::CountLeaseFromAnswer) => self.lease.renewed(env::clock::now()),
            Ok(()) => self.lease.renewed(asked),
            Err(error) => {
                METRICS.lease_failures.inc();
                self.forgot = env::clock::now();
                self.lease.failed(error.to_string());
            }
        }
        METRICS.lease_renewals.inc();
        let state = self.lease.state();
        let holds = matches!(state, LeaseState::Held(_));
        match (self.held.replace(holds), state) {
            (Some(true), LeaseState::Ended(reason)) => {
                METRICS.lease_ends.inc();
                tracing::error!("nothing is acknowledged to servers that wait for this one: {reason}");
            }
            (Some(false), LeaseState::Held(_)) => tracing::info!("the lease of this server holds again"),
            (None, LeaseState::Held(_)) => tracing::info!("this server has a lease, since it has standbys"),
            _ => {}
        }
    }

    /// Renews the lease, and then answers the claims that were made before that.
    async fn attempt(&mut self) -> Result<(), StorageError> {
        self.renewal.renewal += 1;
        self.objects.write(&self.renewal).await?;
        if fault::planted(fault::Bug::IgnoreClaims) {
            return Ok(());
        }
        while let Some(claim) = self.objects.claim(self.answered + 1).await? {
            if self.objects.answer(self.answered + 1, true).await? {
                tracing::info!(standby = claim.by, "a standby wanted to take over, and this server is there");
            } else {
                claim.held.into_iter().for_each(|held| self.lease.lose(held));
            }
            self.answered += 1;
        }
        Ok(())
    }

    /// Now and then standbys have to ask again; if none did since the last time, the lease ends.
    pub(super) async fn forget_if_due(&mut self, now: Instant) {
        if self.policy.keep || now.saturating_duration_since(self.forgot) < self.policy.interval * FORGET_INTERVALS {
            return;
        }
        self.forgot = now;
        let ended = async {
            if self.objects.is_wanted().await? {
                self.objects.forget_wanted().await.map(|()| false)
            } else {
                self.objects.remove().await.map(|()| true)
            }
        };
        let ended = env::clock::timeout(self.policy.takeover_after / 4, ended).await;
        // If it has ended before it was removed, a standby may have seen that.
        if matches!(ended, Ok(Ok(true))) && matches!(self.lease.state(), LeaseState::Held(_)) {
            tracing::info!("no standby asks for a lease any more: it ends");
            self.lease.release();
            self.held = None;
        }
    }
}

fn late(limit: Duration) -> StorageError {
    StorageError::Invalid(format!("the bucket has not answered within {limit:?}"))
}

/// What is known of the WAL that arrives, to see whether any does.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) asked: Option<Instant>,
    pub(super) position: u64,
}
