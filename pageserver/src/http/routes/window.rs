//! How much history a timeline keeps: its own limits, and whether it is archived.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Deserializer, Serialize};
use utils::excerpt::Excerpt;
use utils::lsn::Lsn;
use utoipa::ToSchema;

use crate::http::app::{App, new_ctx, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, Body, TimelinePath};
use crate::http::ids::LsnText;
use crate::http::models::LeftSlot;
use crate::http::moment;
use engine::tenant::timeline::{Limits, Timeline};
use pgdata::TimelineStore;
use pgdata::timestamps::timestamp_of_lsn;

/// Limits of one timeline; null where the server's settings hold.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OwnLimits {
    /// What arrived within this time is kept.
    pitr_interval: Option<String>,
    /// So many bytes of WAL up to the last record are kept.
    gc_horizon: Option<u64>,
    /// History goes beyond so many bytes of WAL; 0 is no limit.
    history_max_bytes: Option<u64>,
}

/// How much history a timeline keeps.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryAnswer {
    /// What arrived within this time is kept.
    pitr_interval: String,
    /// So many bytes of WAL up to the last record are kept, however long ago they arrived.
    gc_horizon: u64,
    /// History goes beyond so many bytes of WAL, however new it is; 0 is no limit.
    history_max_bytes: u64,
    /// Which of these are the timeline's own.
    own: OwnLimits,
    /// Whether it is archived: then only its end is kept, whatever the limits are.
    is_archived: bool,
    /// Below this LSN history has been removed, but for single LSNs; 0/0 if none has.
    #[schema(value_type = LsnText)]
    gc_cutoff_lsn: Lsn,
    /// What that would be if history were removed now. It never goes back: what is gone does not come back with a
    /// longer window.
    #[schema(value_type = LsnText)]
    next_gc_cutoff_lsn: Lsn,
    /// What keeps it from being later.
    bound_by: &'static str,
    /// From here on every LSN is readable.
    #[schema(value_type = LsnText)]
    min_readable_lsn: Lsn,
    /// Time of the newest commit up to there (RFC 3339); null if none is known.
    min_readable_time: Option<String>,
}

/// What happens to a limit: nothing if it is not given; null gives it back to the server's settings.
#[derive(Debug, Default)]
pub(super) enum Change<T> {
    #[default]
    Nothing,
    To(Option<T>),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Change<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::deserialize(deserializer).map(Self::To)
    }
}

impl<T> Change<T> {
    pub(super) fn apply(self, limit: &mut Option<T>) {
        if let Self::To(value) = self {
            *limit = value;
        }
    }
}

/// How much history is to be kept. What is not given stays as it is, and null gives a limit back to the server's
/// settings.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HistoryBody {
    /// Keep what arrived within this time, such as `7d`: whole seconds, at least one.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pitr_interval: Change<String>,
    /// Keep so many bytes of WAL up to the last record, however long ago they arrived: at least 1.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    gc_horizon: Change<u64>,
    /// Keep no more than so many bytes of WAL: at least `gc_horizon`, or 0 for no limit.
    #[serde(default)]
    #[schema(value_type = Option<u64>)]
    history_max_bytes: Change<u64>,
}

/// What is to become of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) enum ArchivalState {
    /// It takes in nothing more, and only its end is kept.
    Archived,
    /// It is in service again, with the history that is left.
    Unarchived,
}

/// Whether a timeline is to be archived.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArchivalBody {
    /// What is to become of it.
    state: ArchivalState,
}

/// What has become of a timeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArchivalAnswer {
    /// Whether it is archived.
    is_archived: bool,
    /// Replication slots for which servers keep all WAL until it is unarchived: to be dropped if it never will.
    left_slots: Vec<LeftSlot>,
}

fn text(duration: Duration) -> String {
    humantime::format_duration(duration).to_string()
}

async fn answer(timeline: &Timeline) -> HistoryAnswer {
    let (policy, window) = (timeline.retention_policy(), timeline.window());
    let store = TimelineStore::new(timeline.clone(), new_ctx());
    // It is no more than a hint, and may have gone since.
    let time = timestamp_of_lsn(&store, window.oldest).await.ok().flatten();
    let Limits { pitr_interval, gc_horizon, history_max_bytes } = window.limits;
    let pitr_interval = pitr_interval.map(|seconds| text(Duration::from_secs(seconds)));
    HistoryAnswer {
        pitr_interval: text(policy.pitr_interval),
        gc_horizon: policy.gc_horizon,
        history_max_bytes: policy.history_max_bytes,
        own: OwnLimits { pitr_interval, gc_horizon, history_max_bytes },
        is_archived: timeline.is_archived(),
        gc_cutoff_lsn: window.cutoff,
        next_gc_cutoff_lsn: window.next_cutoff,
        bound_by: window.bound_by,
        min_readable_lsn: window.oldest,
        min_readable_time: time.and_then(moment::from_pg).map(moment::print),
    }
}

/// Shows how much history a timeline keeps.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/history", tag = "timelines",
    params(TimelinePath), responses((status = 200, body = HistoryAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn history(
    State(app): State<App>,
    At(path): At<TimelinePath>,
) -> Result<Json<HistoryAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    Ok(Json(answer(&timeline).await))
}

/// Changes how much history a timeline keeps. A shorter window counts from the next removal of history on. A longer
/// one keeps more from now on: what is gone does not come back.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/history", tag = "timelines",
    params(TimelinePath), request_body = HistoryBody,
    responses((status = 200, body = HistoryAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn set_history(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Body(body): Body<HistoryBody>,
) -> Result<Json<HistoryAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let HistoryBody { pitr_interval, gc_horizon, history_max_bytes } = body;
    let pitr_interval = match pitr_interval {
        Change::To(Some(text)) => Change::To(Some(whole_seconds(&text).map_err(ApiError::bad_request)?)),
        Change::To(None) => Change::To(None),
        Change::Nothing => Change::Nothing,
    };
    to_the_end("change of how much history is kept", async move {
        // One after the other: each changes what the one before has left.
        let _changing = app.naming.lock(path.tenant_shard_id).await;
        let mut limits = timeline.window().limits;
        pitr_interval.apply(&mut limits.pitr_interval);
        gc_horizon.apply(&mut limits.gc_horizon);
        history_max_bytes.apply(&mut limits.history_max_bytes);
        if let Some((name, reason)) = limits.over(&app.manager.conf().retention).defect() {
            return Err(ApiError::bad_request(format!("{name}: {reason}")));
        }
        timeline.set_limits(limits).await?;
        tracing::info!(timeline = %timeline.timeline_id(), ?limits, "how much history is kept was changed");
        Ok(Json(answer(&timeline).await))
    })
    .await
}

/// Archives a timeline, or takes it back into service. An archived one takes in nothing, also after restarts, and can
/// be read at its end; the history before goes at the next removal, but for branch points, leases and holds, and its
/// layers are the first to leave the local disk. A server that it follows goes on to keep WAL for it. One that a
/// compute writes is not archived.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/archival_config", tag = "timelines",
    params(TimelinePath), request_body = ArchivalBody,
    responses((status = 200, body = ArchivalAnswer), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "A compute writes it"),
        (status = 412, body = ErrorBody, description = "Branches of it are not archived, or its ancestor is")))]
pub(crate) async fn archival_config(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Body(body): Body<ArchivalBody>,
) -> Result<Json<ArchivalAnswer>, ApiError> {
    let TimelinePath { tenant_shard_id: tenant, timeline_id } = path;
    let timeline = app.manager.get(tenant, timeline_id)?;
    to_the_end("archival of a timeline", async move {
        let mut left_slots = Vec::new();
        match body.state {
            ArchivalState::Archived => left_slots.extend(app.sources.archive(&timeline).await?),
            ArchivalState::Unarchived => app.sources.unarchive(&timeline).await?,
        }
        tracing::info!(%tenant, timeline = %timeline_id, state = ?body.state, "archival changed");
        Ok(Json(ArchivalAnswer { is_archived: timeline.is_archived(), left_slots }))
    })
    .await
}

/// Parses a duration of whole seconds.
fn whole_seconds(text: &str) -> Result<u64, String> {
    let shown = Excerpt(text);
    let parsed = humantime::parse_duration(text);
    let duration = parsed.map_err(|error| format!("pitr_interval: {shown:?} is no duration such as 7d: {error}"))?;
    match duration.subsec_nanos() {
        0 => Ok(duration.as_secs()),
        _ => Err(format!("pitr_interval: {shown:?} are no whole seconds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_given_stays_and_null_gives_back() {
        let body: HistoryBody = serde_json::from_str(r#"{"gc_horizon": null, "history_max_bytes": 7}"#).unwrap();
        let mut limits = Limits { pitr_interval: Some(1), gc_horizon: Some(2), history_max_bytes: Some(3) };
        assert!(matches!(body.pitr_interval, Change::Nothing));
        body.gc_horizon.apply(&mut limits.gc_horizon);
        body.history_max_bytes.apply(&mut limits.history_max_bytes);
        assert_eq!(limits, Limits { pitr_interval: Some(1), gc_horizon: None, history_max_bytes: Some(7) });
    }

    #[test]
    fn windows_are_whole_seconds() {
        assert_eq!(whole_seconds("7d"), Ok(7 * 24 * 3600));
        assert_eq!(whole_seconds("1h 30m"), Ok(5400));
        for bad in ["", "7", "-7d", "1s 500ms", "soon", "99999999999999999999d"] {
            assert!(whole_seconds(bad).is_err_and(|reason| reason.starts_with("pitr_interval: ")), "{bad}");
        }
    }
}
