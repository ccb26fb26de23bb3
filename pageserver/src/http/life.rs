//! The life of branches: those that have expired are deleted, and a restoration that was interrupted is completed.
//! Nothing deletes a branch that is protected, or that others branch off.

use std::collections::HashMap;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;

use super::app::App;
use super::audit::Entry;
use super::error::ApiError;
use super::init;
use super::models::DeleteAnswer;
use crate::walreceiver::card::{self, BranchCard, Successor};
use crate::walreceiver::stored::{name_of, of_new_branch};
use engine::tenant::manager::{ManageError, NewBranch};
use engine::tenant::timeline::Timeline;

/// How often branches are looked at, at least: some come from other servers, and what was refused is tried again.
const LOOK_PERIOD: Duration = Duration::from_secs(10);
/// The least time between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// Why nothing of a tenant expires.
const UNKNOWN: &str = "whether others branch off it is not known yet: the tenant was attached a short time ago \
                       (gc_pause_after_attach), or a timeline of it could not be opened";

type Id = (TenantShardId, TimelineId);

/// Looks after all branches until `cancel`.
pub(super) async fn tend(app: App, cancel: CancellationToken) {
    // The server whose bucket it is does that.
    if app.sources.is_scratch() {
        return;
    }
    loop {
        let wait = look(&app, &cancel).await;
        tokio::select! {
            () = env::clock::sleep(wait) => {}
            () = app.life.changed.notified() => env::clock::sleep(PAUSE).await,
            () = cancel.cancelled() => return,
        }
    }
}

/// Deletes the branches that have expired. Returns when to look again.
async fn look(app: &App, cancel: &CancellationToken) -> Duration {
    let mut wait = LOOK_PERIOD;
    loop {
        let (mut refused, mut gone) = (HashMap::new(), 0);
        for timeline in app.manager.all_timelines() {
            if cancel.is_cancelled() {
                return wait;
            }
            let Ok(card) = BranchCard::of(&timeline) else { continue };
            if !may_change(&timeline) {
                continue;
            }
            let id = (timeline.tenant_shard_id(), timeline.timeline_id());
            if card.successor.is_some() {
                complete_later(app, &timeline).await;
            }
            match card.expires_at {
                Some(_) if card.has_expired(card::now()) => match expire(app, id).await {
                    Ok(is_gone) => gone += usize::from(is_gone),
                    Err(reason) => drop(refused.insert(id, reason)),
                },
                Some(end) => {
                    let left = Duration::from_secs(end.saturating_sub(card::seconds(card::now())));
                    wait = wait.min(left.max(PAUSE));
                }
                None => {}
            }
        }
        {
            let mut known = app.life.refused.lock();
            let news = refused.iter().filter(|(id, reason)| known.get(id) != Some(reason));
            news.for_each(|((tenant, timeline), reason)| {
                tracing::info!(%tenant, %timeline, "a branch has expired and stays for now: {reason}");
            });
            *known = refused;
        }
        // What branched off others has gone: these may go now.
        if gone == 0 {
            return wait;
        }
    }
}

/// Whether this server may change the timeline now.
pub(super) fn may_change(timeline: &Timeline) -> bool {
    let leased = timeline.remote().is_none_or(|remote| remote.check_lease().is_ok());
    leased && timeline.fenced().is_none() && timeline.broken().is_none()
}

/// Deletes a branch that has expired. False if it lives on after all.
async fn expire(app: &App, (tenant, id): Id) -> Result<bool, String> {
    // Nobody gives it more time, or protects it, meanwhile.
    let _naming = app.naming.lock(tenant).await;
    let Ok(timeline) = app.manager.get(tenant, id) else { return Ok(false) };
    let card = BranchCard::of(&timeline).map_err(|error| error.to_string())?;
    if !card.has_expired(card::now()) {
        return Ok(false);
    }
    if let Some(reason) = kept_by(app, &timeline, &card) {
        return Err(reason);
    }
    // Why is in the answer to a removal of history, with the time that is left.
    app.manager.check_branches_known(tenant).map_err(|_| UNKNOWN.to_owned())?;
    let name = name_of(&timeline).ok().flatten();
    delete_locked(app, tenant, id).await.map_err(|error| error.msg().to_owned())?;
    app.audit.note(Entry::of_server("expiry of a branch", tenant.to_string(), id.to_string()));
    tracing::info!(%tenant, timeline = %id, name, "the branch has expired, and is deleted");
    Ok(true)
}

/// What keeps a branch that has expired.
fn kept_by(app: &App, timeline: &Timeline, card: &BranchCard) -> Option<String> {
    let children = app.manager.children(timeline.tenant_shard_id(), timeline.timeline_id());
    match (card.protected, children.len()) {
        (true, _) => Some("it is protected".to_owned()),
        (false, 0) => None,
        (false, 1) => Some("it has a branch".to_owned()),
        (false, count) => Some(format!("it has {count} branches")),
    }
}

/// Why a branch that has expired is still there; `None` if it has not.
pub(super) fn expired(app: &App, timeline: &Timeline, card: &BranchCard) -> Option<String> {
    if !card.has_expired(card::now()) {
        return None;
    }
    let id = (timeline.tenant_shard_id(), timeline.timeline_id());
    let known = || app.life.refused.lock().get(&id).cloned();
    Some(kept_by(app, timeline, card).or_else(known).unwrap_or_else(|| "it is about to be deleted".to_owned()))
}

/// Refuses to touch a branch that is protected.
pub(super) fn check_unprotected(timeline: &Timeline) -> Result<(), ApiError> {
    // Of one whose card cannot be read nothing is known: it could never be deleted otherwise.
    let card = BranchCard::of(timeline).unwrap_or_default();
    let name = name_of(timeline).ok().flatten().unwrap_or_else(|| timeline.timeline_id().to_string());
    if card.protected {
        let reason = format!(
            "branch {name} is protected: it is neither deleted nor reset. To change that: pagectl branch set {name} \
             --unprotect"
        );
        return Err(ApiError::conflict(reason));
    }
    Ok(())
}

/// Deletes a timeline and everything stored for it.
pub(super) async fn delete(app: &App, tenant: TenantShardId, id: TimelineId) -> Result<DeleteAnswer, ApiError> {
    let _naming = app.naming.lock(tenant).await;
    if let Ok(timeline) = app.manager.get(tenant, id) {
        check_unprotected(&timeline)?;
        complete(app, &timeline).await?;
    }
    delete_locked(app, tenant, id).await
}

async fn delete_locked(app: &App, tenant: TenantShardId, id: TimelineId) -> Result<DeleteAnswer, ApiError> {
    let copying = app.sources.is_copying(tenant, id);
    let mut left_slots = Vec::new();
    if app.manager.children(tenant, id).is_empty() {
        left_slots.extend(app.sources.stop(tenant, id).await);
    }
    match app.manager.delete_timeline(tenant, id).await {
        Err(ManageError::NotFound(_)) if copying => {}
        Err(error) => {
            // It still exists and stays in service.
            app.sources.receive_tenant(tenant).await;
            return Err(error.into());
        }
        Ok(()) => {}
    }
    tracing::info!(%tenant, timeline = %id, ?left_slots, "timeline deleted");
    Ok(DeleteAnswer { left_slots })
}

/// Completes the restoration of a branch that was interrupted, unless it fails again.
async fn complete_later(app: &App, timeline: &Timeline) {
    let _naming = app.naming.lock(timeline.tenant_shard_id()).await;
    if let Err(error) = complete(app, timeline).await {
        let timeline = timeline.timeline_id();
        tracing::warn!(%timeline, "the restoration of a branch is not complete, will be tried again: {}", error.msg());
    }
}

/// Makes the branch that takes the place of this one, if one is to, and forgets that. Whoever calls holds the tenant's
/// names.
pub(super) async fn complete(app: &App, timeline: &Timeline) -> Result<(), ApiError> {
    let card = BranchCard::of(timeline)?;
    let Some(successor) = card.successor.clone() else { return Ok(()) };
    let (tenant, former) = (timeline.tenant_shard_id(), timeline.timeline_id());
    let Successor { timeline_id, name, lsn, anew_of } = successor.clone();
    if let Err((error, gives_up)) = succeed(app, timeline, successor, card).await {
        if gives_up {
            // That moment cannot be had: all is as it was.
            let former = |own: &mut Option<String>, card: &mut BranchCard| {
                card.successor = None;
                *own = name.or(own.take());
                Ok::<(), ApiError>(())
            };
            app.sources.change_card(timeline, former).await?;
        }
        return Err(error);
    }
    app.sources
        .change_card(timeline, |_, card| {
            card.successor = None;
            if anew_of.is_some() {
                // Nothing needs it any more.
                (card.expires_at, card.protected) = (Some(1), false);
            }
            Ok::<(), ApiError>(())
        })
        .await?;
    let name = name.unwrap_or_default();
    tracing::info!(%tenant, %former, timeline = %timeline_id, at = %lsn, "branch {name} is restored");
    Ok(())
}

/// Makes the branch that takes the place of another one. With an error comes whether it is never made.
async fn succeed(app: &App, former: &Timeline, successor: Successor, card: BranchCard) -> Result<(), (ApiError, bool)> {
    let Successor { timeline_id, name, lsn, anew_of } = successor;
    let (tenant, created_at) = (former.tenant_shard_id(), Some(card::seconds(env::clock::system_now())));
    let init = match anew_of {
        None => card.init,
        Some(ancestor) => {
            let ancestor = app.manager.get(tenant, ancestor).map_err(|error| (error.into(), false))?;
            init::anew_of(&ancestor, lsn, card.init).map_err(|error| (error, true))?
        }
    };
    let card = BranchCard { created_at, successor: None, init, ..card };
    let told = of_new_branch(name, card).map_err(|error| (error.into(), false))?;
    let ancestor_id = anew_of.unwrap_or(former.timeline_id());
    let new = NewBranch { timeline_id, ancestor_id, lsn: Some(lsn) };
    match app.manager.branch_with(tenant, new, Some(told)).await {
        Ok(_) => Ok(()),
        Err(error) => {
            let gives_up = matches!(error, ManageError::NotAcceptable(_) | ManageError::Conflict(_));
            Err((error.into(), gives_up))
        }
    }
}
