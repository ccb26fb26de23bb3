//! Who runs the SQL of a branch, and how it ended. The server does not run it itself, as it has no Postgres: whoever
//! has one asks for the turn, runs it, and says how that was. It is run on a branch as it was made, and never a second
//! time on what an earlier run may have left.

use std::time::Duration;

use axum::http::StatusCode;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::app::{App, TimelineOf};
use super::error::ApiError;
use super::init::{Standing, shown};
use super::life;
use crate::walreceiver::card::{self, BranchCard, Successor};
use crate::walreceiver::init_sql::{Init, InitState, Script};
use engine::tenant::timeline::Timeline;

/// Who runs SQL and was not heard of for so long does so no more.
const LEASE: Duration = Duration::from_secs(10);
/// What was heard of longer ago is forgotten.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Maximum length of the reason why it failed, in characters.
const ERROR_MAX: usize = 2000;

/// Who asks to run the SQL of a branch.
pub(super) struct Turn {
    /// Its name for this run.
    pub(super) run: String,
    /// Also if it has failed.
    pub(super) retry: bool,
    /// In place of the branch's own SQL so far.
    pub(super) own: Option<Script>,
    /// The id of the timeline that is made if what there is was touched.
    pub(super) new_timeline_id: TimelineId,
}

/// Gives somebody the turn to run a branch's SQL, if it is to be run and nobody is at it. Returns the timeline to run
/// it on, which takes the place of this one if that was touched.
pub(super) async fn begin(app: &App, timeline: &Timeline, turn: Turn) -> Result<(Timeline, bool), ApiError> {
    let tenant = timeline.tenant_shard_id();
    let _naming = app.naming.lock(tenant).await;
    check_owner(timeline)?;
    life::complete(app, timeline).await?;
    check_lives(timeline)?;
    let Some(standing) = Standing::of(timeline)? else {
        return Err(ApiError::precondition(format!("branch {} has no SQL to run", shown(timeline))));
    };
    let is_lost = standing.init.state == InitState::Done && standing.done_at.is_none();
    let is_mine = standing.init.run.as_deref() == Some(&*turn.run);
    match standing.state() {
        InitState::Running if is_mine => return Ok((timeline.clone(), true)),
        InitState::Done | InitState::Running if turn.own.is_some() => {
            return Err(ApiError::conflict(format!("the SQL of branch {} was run, or is", shown(timeline))));
        }
        InitState::Done => return Ok((timeline.clone(), false)),
        InitState::Failed if !turn.retry => return Ok((timeline.clone(), false)),
        InitState::Running if is_alive(app, timeline, standing.init.run.as_deref()) => {
            return Ok((timeline.clone(), false));
        }
        _ => {}
    }
    if let Some(writer) = app.sources.writer(timeline)
        && standing.state() != InitState::Running
    {
        // Who repairs something would lose it.
        let reason = format!("compute {} writes branch {}, which is closed: stop it", writer.name, shown(timeline));
        return Err(ApiError::conflict(reason));
    }
    let was_touched = is_lost
        || standing.state() != InitState::Pending
        || turn.own.is_some()
        || timeline.last_record_lsn() > timeline.origin().import_lsn;
    let timeline = match was_touched {
        true => anew(app, timeline, turn.new_timeline_id, turn.own).await?,
        false => timeline.clone(),
    };
    // What all branches of its ancestor have may have been taken back meanwhile.
    if Standing::of(&timeline)?.is_none_or(|standing| standing.state() != InitState::Pending) {
        return Ok((timeline, false));
    }
    let run = turn.run.clone();
    change(app, &timeline, |init| {
        *init = Init { state: InitState::Running, run: Some(run), error: None, lsn: None, ..std::mem::take(init) };
    })
    .await?;
    heard(app, &timeline, turn.run.clone());
    tracing::info!(%tenant, timeline = %timeline.timeline_id(), run = turn.run, "SQL of a branch is being run");
    Ok((timeline, true))
}

/// Refuses a branch that has expired: another one may have taken its place.
fn check_lives(timeline: &Timeline) -> Result<(), ApiError> {
    if BranchCard::of(timeline)?.has_expired(card::now()) {
        return Err(ApiError::not_found(format!("branch {} has expired", shown(timeline))));
    }
    Ok(())
}

/// Refuses where another server may have the tenant by now: it would give the turn to somebody else.
fn check_owner(timeline: &Timeline) -> Result<(), ApiError> {
    if life::may_change(timeline) {
        return Ok(());
    }
    let reason = format!("this server may not change branch {} now: another one may have it", shown(timeline));
    Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason))
}

/// Has the branch begin anew, as it was made; what it was is deleted.
async fn anew(app: &App, former: &Timeline, id: TimelineId, own: Option<Script>) -> Result<Timeline, ApiError> {
    let (tenant, info) = (former.tenant_shard_id(), former.info());
    let name = shown(former);
    let (Some(ancestor), Some(lsn)) = (info.ancestor_timeline_id, info.ancestor_lsn) else {
        let reason = format!("branch {name} was detached, and cannot begin anew: delete it, and make another one");
        return Err(ApiError::precondition(reason));
    };
    let count = app.manager.children(tenant, former.timeline_id()).len();
    if count > 0 {
        return Err(ApiError::precondition(format!("branch {name} has {count} branches: delete those first")));
    }
    app.sources.stop(tenant, former.timeline_id()).await;
    app.sources
        .change_card(former, |name, card| {
            if let Some(own) = own {
                let init = card.init.get_or_insert_default();
                init.scripts.retain(|script| script.standing);
                init.scripts.push(own);
            }
            // One without a name is known by nothing but its id, which is another one then.
            let named = name.take();
            card.successor = Some(Successor { timeline_id: id, name: named, lsn, anew_of: Some(ancestor) });
            Ok::<(), ApiError>(())
        })
        .await?;
    life::complete(app, former).await?;
    app.life.look_soon();
    Ok(app.manager.get(tenant, id)?)
}

/// Whether whoever runs it was heard of lately. After a start of the server everybody has some time.
fn is_alive(app: &App, timeline: &Timeline, run: Option<&str>) -> bool {
    let Some(run) = run else { return false };
    let now = env::clock::now();
    let mut runs = app.life.runs.lock();
    let (known, heard) = runs.entry(id(timeline)).or_insert_with(|| (run.to_owned(), now));
    if known != run {
        (*known, *heard) = (run.to_owned(), now);
    }
    now.saturating_duration_since(*heard) < LEASE
}

fn heard(app: &App, timeline: &Timeline, run: String) {
    let now = env::clock::now();
    let mut runs = app.life.runs.lock();
    runs.retain(|_, (_, heard)| now.saturating_duration_since(*heard) < REMEMBERED);
    runs.insert(id(timeline), (run, now));
}

fn id(timeline: &Timeline) -> TimelineOf {
    (timeline.tenant_shard_id(), timeline.timeline_id())
}

/// Whoever runs it is still at it. False if it is not theirs to run any more.
pub(super) fn renew(app: &App, timeline: &Timeline, run: &str) -> Result<bool, ApiError> {
    let standing = Standing::of(timeline)?;
    let is_theirs = standing
        .is_some_and(|standing| standing.init.state == InitState::Running && standing.init.run.as_deref() == Some(run));
    if is_theirs {
        heard(app, timeline, run.to_owned());
    }
    Ok(is_theirs)
}

/// How a run has ended.
pub(super) enum Ended {
    /// All of it has succeeded, and the branch has all that it wrote, up to here.
    Done(Lsn),
    /// It has failed: it is not tried again before somebody says so.
    Failed(String),
    /// It could not be run: anybody may try again.
    GaveUp(String),
}

/// Notes how a run has ended.
pub(super) async fn end(app: &App, timeline: &Timeline, run: &str, ended: Ended) -> Result<(), ApiError> {
    let _naming = app.naming.lock(timeline.tenant_shard_id()).await;
    check_owner(timeline)?;
    check_lives(timeline)?;
    let standing = Standing::of(timeline)?;
    let Some(Standing { init, .. }) = standing.filter(|standing| standing.init.run.as_deref() == Some(run)) else {
        return Err(ApiError::conflict(format!("run {run} of the SQL of branch {} is over", shown(timeline))));
    };
    let (state, lsn, error) = match ended {
        Ended::Done(lsn) => (InitState::Done, Some(lsn), None),
        Ended::Failed(error) => (InitState::Failed, None, Some(error)),
        Ended::GaveUp(error) => (InitState::Pending, None, Some(error)),
    };
    if init.state != InitState::Running {
        // It says so again.
        let is_same = (init.state, init.lsn) == (state, lsn);
        let over = || ApiError::conflict(format!("run {run} of the SQL of branch {} has ended", shown(timeline)));
        return if is_same { Ok(()) } else { Err(over()) };
    }
    if let Some(lsn) = lsn {
        settle(app, timeline, lsn).await?;
    }
    let error = error.map(|error| printable(&error));
    let words = error.clone();
    change(app, timeline, |init| (init.state, init.lsn, init.error) = (state, lsn, error)).await?;
    app.life.runs.lock().remove(&id(timeline));
    let (tenant, timeline) = id(timeline);
    match words {
        None => tracing::info!(%tenant, %timeline, run, "SQL of a branch is done: the branch is open"),
        Some(error) => tracing::info!(%tenant, %timeline, run, ?state, "SQL of a branch did not succeed: {error}"),
    }
    Ok(())
}

/// Before a branch is said to be done: nobody writes it, and what was written survives this server.
async fn settle(app: &App, timeline: &Timeline, lsn: Lsn) -> Result<(), ApiError> {
    if let Some(writer) = app.sources.writer(timeline) {
        let reason = format!("compute {} still writes branch {}", writer.name, shown(timeline));
        return Err(ApiError::conflict(reason));
    }
    let last = timeline.last_record_lsn();
    if last < lsn {
        let reason = format!("branch {} ends at {last}: what was written up to {lsn} has not come", shown(timeline));
        return Err(ApiError::precondition(reason));
    }
    timeline.flush(&app.ctx).await?;
    match timeline.disk_consistent_lsn() {
        durable if durable >= lsn => Ok(()),
        durable => Err(ApiError::precondition(format!("branch {} is durable up to {durable} only", shown(timeline)))),
    }
}

async fn change(app: &App, timeline: &Timeline, change: impl FnOnce(&mut Init)) -> Result<(), ApiError> {
    app.sources
        .change_card(timeline, |_, card| {
            change(card.init.get_or_insert_default());
            Ok(())
        })
        .await
}

/// What can be shown in one line.
fn printable(text: &str) -> String {
    text.chars().take(ERROR_MAX).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_line() {
        assert_eq!(printable("a\nb\u{1b}c"), "a b c");
        assert_eq!(printable(&"x".repeat(5000)).len(), ERROR_MAX);
    }
}
