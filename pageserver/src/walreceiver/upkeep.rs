//! The journal of the whole server: a start takes in what it has before anybody is served, and it stays within its
//! size.

use std::collections::HashSet;
use std::time::Duration;

use journal::{Journal, Lane, Need};
use pageserver_api::shard::TenantShardId;
use utils::lsn::Lsn;

use super::{Id, LOOK_PERIOD, WalReceivers, journaled, session, tail};
use engine::context::{DownloadBehavior, RequestContext};
use engine::lease::LeaseState;
use engine::task_mgr::TaskKind;
use engine::tenant::timeline::Timeline;

/// Pause after each attempt to make the journal smaller.
const TRIM_PAUSE: Duration = Duration::from_secs(1);
/// For so long a server that has lost what it owned, or has just started, keeps what it does not know: it is about to
/// be made a standby, whose journal counts.
const UNKNOWN_KEPT: Duration = Duration::from_secs(60);

impl WalReceivers {
    /// Whether WAL is durable in a journal before layers have it.
    pub fn has_journal(&self) -> bool {
        self.inner.journal.is_some()
    }

    pub(super) fn lane(&self, (tenant, timeline): Id) -> Option<Lane> {
        Some(self.inner.journal.as_ref()?.lane(journal::Id { tenant, timeline }))
    }

    /// Takes in what the journal has of all timelines: whoever is served afterwards sees all that was durable. Returns
    /// whether that is so. What takes too long goes on, and what fails is tried again when a server is followed.
    pub async fn recover(&self) -> bool {
        let manager = &self.inner.manager;
        let all = manager.tenants().into_iter().flat_map(|tenant| manager.timelines(tenant).unwrap_or_default());
        let all: Vec<Timeline> = all.filter(|timeline| session::check_owner(timeline).is_ok()).collect();
        self.settle_doubts().await;
        let replays = all.iter().cloned().filter_map(|timeline| {
            let lane = self.lane((timeline.tenant_shard_id(), timeline.timeline_id()))?;
            Some(journaled::replay_or_warn(timeline, lane))
        });
        let is_whole = journaled::replay_for_a_start(replays.collect()).await;
        self.recover_tails(&all).await && is_whole
    }

    /// Looks of which writer it is what the journal has of tenants that this server was about to own when it ended.
    async fn settle_doubts(&self) {
        let (Some(standing), manager) = (&self.inner.standing, &self.inner.manager) else { return };
        for tenant in manager.tenants() {
            let timelines = manager.timelines(tenant).unwrap_or_default();
            if let Err(error) = standing.settle(tenant, timelines).await {
                tracing::error!(%tenant, "not all that there is of its WAL was taken in: {error}");
            }
        }
    }

    /// Takes in what the bucket has of WAL that the journal has lost. Makes no request if it has lost none.
    async fn recover_tails(&self, all: &[Timeline]) -> bool {
        let Some(journal) = &self.inner.journal else { return true };
        let stats = journal.stats();
        let is_lost = stats.segments == 0 || stats.damages > 0;
        if !is_lost || self.inner.manager.conf().bucket_tail_interval.is_none() {
            return true;
        }
        let taken_in = tail::take_in_all(all).await;
        taken_in.inspect_err(|error| tracing::warn!("WAL in the bucket was not taken in: {error}")).is_ok()
    }

    /// Trims the journal again and again, at once when it becomes too large, until shutdown.
    pub(super) async fn keep_journal_small(self, journal: Journal) {
        let mut owned = env::clock::now();
        loop {
            tokio::select! {
                () = env::clock::sleep(LOOK_PERIOD) => {}
                () = journal.crowded() => {}
                () = self.inner.cancel.cancelled() => return,
            }
            let owns_nothing = self.owns_nothing();
            if !owns_nothing {
                owned = env::clock::now();
            }
            let is_new = env::clock::now().saturating_duration_since(owned) < UNKNOWN_KEPT
                && !fault::planted(fault::Bug::GiveUpUnknownAtOnce);
            self.trim_journal(&journal, owns_nothing && is_new).await;
            env::clock::sleep(TRIM_PAUSE).await;
        }
    }

    /// Whether no tenant is this server's: then nobody needs room in the journal.
    fn owns_nothing(&self) -> bool {
        let manager = &self.inner.manager;
        let is_owned = |tenant| manager.remote_of(tenant).is_none_or(|remote| remote.fenced().is_none());
        !manager.tenants().into_iter().any(is_owned)
    }

    /// Gives up what of the journal layers have, and has those timelines written to layers that keep it from going when
    /// it is too large. What is not known goes then, too, unless it is to be kept.
    async fn trim_journal(&self, journal: &Journal, keeps_unknown: bool) {
        let manager = &self.inner.manager;
        let unknown = if keeps_unknown { Need::From(Lsn(0)) } else { Need::Unknown };
        let closed: HashSet<Id> = manager.broken().into_iter().map(|(tenant, id, _)| (tenant, id)).collect();
        let standbys: HashSet<TenantShardId> = manager.standbys().into_iter().map(|(tenant, _)| tenant).collect();
        let as_standby = |id: &journal::Id| self.inner.standing.as_ref()?.need(id, &standbys);
        // If this server has standbys, one of them may take over what is not in the bucket, and be lost.
        let is_followed = manager.lease() != LeaseState::None;
        let need = |id: &journal::Id| match manager.get(id.tenant, id.timeline) {
            // Another server's, which may be lost before the bucket has all of it.
            Ok(timeline) if timeline.fenced().is_some() => unknown,
            // It is written to layers no more, and must not hold up all others.
            Ok(timeline) if timeline.broken().is_some() => Need::Unknown,
            Ok(timeline) if is_followed => {
                let needed = timeline.disk_consistent_lsn();
                Need::Rather { needed, wanted: timeline.durable_lsn().min(needed) }
            }
            Ok(timeline) => Need::From(timeline.disk_consistent_lsn()),
            Err(_) if closed.contains(&(id.tenant, id.timeline)) => Need::Unknown,
            Err(_) if manager.timelines(id.tenant).is_ok() => Need::Nothing,
            Err(_) => as_standby(id).unwrap_or(unknown),
        };
        let pins = match journal.trim(need).await {
            Ok(pins) => pins,
            Err(error) => return tracing::warn!("the journal was not cut: {error}"),
        };
        if pins.is_empty() {
            return;
        }
        let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Error);
        for pin in pins {
            let Ok(timeline) = manager.get(pin.tenant, pin.timeline) else { continue };
            // It was logged there, and is tried again.
            let _ = timeline.flush(&ctx).await;
        }
        match journal.trim(need).await {
            Ok(pins) => self.relieve(journal, &pins).await,
            Err(error) => tracing::warn!("the journal was not cut: {error}"),
        }
    }

    /// What this server has as a standby must not keep WAL of its own timelines out.
    async fn relieve(&self, journal: &Journal, pins: &[journal::Id]) {
        let Some(standing) = self.inner.standing.as_ref().filter(|_| journal.is_strained()) else { return };
        if self.owns_nothing() && !fault::planted(fault::Bug::GiveUpForNobody) {
            // Nobody needs the room: it receives no more as a standby, and what it has may be all that there is.
            return;
        }
        for pin in pins {
            if self.inner.manager.get(pin.tenant, pin.timeline).is_err() {
                standing.give_up((pin.tenant, pin.timeline)).await;
            }
        }
    }
}
