//! LSNs and times of a timeline.

use std::time::SystemTime;

use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use utils::lsn::Lsn;
use utoipa::IntoParams;

use crate::http::app::{App, new_ctx};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{Args, At, Body, TimelinePath};
use crate::http::ids::LsnText;
use crate::http::models::{LeaseAnswer, LsnBody, LsnByTimestampAnswer};
use crate::http::moment;
use engine::tenant::timeline::Timeline;
use errors::{ErrorKind, StorageError};
use pgdata::TimelineStore;
use pgdata::timestamps::{LsnByTimestamp, lsn_by_timestamp, timestamp_of_lsn};

/// Finds `wanted` in the readable history of `timeline`.
pub(super) async fn find_moment(timeline: &Timeline, wanted: SystemTime) -> Result<LsnByTimestamp, StorageError> {
    let store = TimelineStore::new(timeline.clone(), new_ctx());
    loop {
        let (first, last) = (timeline.min_readable_lsn(), timeline.last_record_lsn());
        match lsn_by_timestamp(&store, moment::to_pg(wanted), first, last).await {
            // The history before it was removed during the search.
            Err(error) if error.kind() == ErrorKind::Invalid && first < timeline.min_readable_lsn() => {}
            found => return found,
        }
    }
}

/// The last LSN up to which no commit is after the time, which must be in the history that is kept.
pub(super) async fn lsn_of_moment(timeline: &Timeline, text: &str) -> Result<Lsn, ApiError> {
    let wanted = moment::parse(text).map_err(ApiError::bad_request)?;
    match find_moment(timeline, wanted).await? {
        LsnByTimestamp::Present(lsn) => Ok(lsn),
        LsnByTimestamp::Future(lsn) if wanted <= env::clock::system_now() => Ok(lsn),
        LsnByTimestamp::Future(_) => Err(ApiError::not_acceptable(format!("{text} is in the future"))),
        LsnByTimestamp::Past(first) => Err(ApiError::not_acceptable(format!(
            "{text} is before the history that is kept, which begins at LSN {first}; a longer window \
             (pitr_interval, gc_horizon, history_max_bytes), or a branch, a lease or a hold made in time would have \
             kept it"
        ))),
        LsnByTimestamp::NoData(_) => {
            Err(ApiError::not_acceptable(format!("{text} cannot be found: no commit has left its time as yet")))
        }
    }
}

/// The requested LSN, or that of the last record. It must be readable now.
pub(super) fn lsn_to_read(timeline: &Timeline, asked: Option<Lsn>) -> Result<Lsn, ApiError> {
    let last = timeline.last_record_lsn();
    let lsn = asked.unwrap_or(last);
    if lsn > last {
        return Err(ApiError::precondition(format!("LSN {lsn} is after the last record, which ends at {last}")));
    }
    timeline.check_readable(lsn).map_err(not_readable)?;
    Ok(lsn)
}

/// What is not readable is a state of what is stored, not a mistake of the caller.
pub(super) fn not_readable(error: StorageError) -> ApiError {
    match error.kind() {
        ErrorKind::Invalid => ApiError::precondition(error.to_string()),
        _ => error.into(),
    }
}

/// A time.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct MomentArgs {
    /// RFC 3339, or relative to the server's clock, such as `10 minutes ago`; a `+` must be encoded as `%2B`.
    timestamp: String,
    /// Whether to lease the LSN.
    #[serde(default)]
    with_lease: bool,
}

/// Finds the last LSN up to which no commit is after a time.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/get_lsn_by_timestamp", tag = "LSNs",
    params(TimelinePath, MomentArgs),
    responses((status = 200, body = LsnByTimestampAnswer), (status = 400, body = ErrorBody)))]
pub(crate) async fn get_lsn_by_timestamp(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<MomentArgs>,
) -> Result<Json<LsnByTimestampAnswer>, ApiError> {
    let wanted = moment::parse(&args.timestamp).map_err(ApiError::bad_request)?;
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let (kind, lsn) = match find_moment(&timeline, wanted).await? {
        LsnByTimestamp::Present(lsn) => ("present", lsn),
        LsnByTimestamp::Future(lsn) => ("future", lsn),
        LsnByTimestamp::Past(lsn) => ("past", lsn),
        LsnByTimestamp::NoData(lsn) => ("nodata", lsn),
    };
    let valid_until = match args.with_lease {
        true => {
            let until = timeline.lease(lsn, app.manager.conf().lsn_lease_length).await;
            Some(moment::print(until.map_err(not_readable)?))
        }
        false => None,
    };
    Ok(Json(LsnByTimestampAnswer { lsn, kind, valid_until }))
}

/// An LSN.
#[derive(Debug, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct LsnArgs {
    /// Such as 0/16B3748.
    #[param(value_type = LsnText)]
    lsn: Lsn,
}

/// Finds the time of the newest commit up to an LSN.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/get_timestamp_of_lsn", tag = "LSNs",
    params(TimelinePath, LsnArgs),
    responses((status = 200, body = String), (status = 412, body = ErrorBody, description = "No commit is known")))]
pub(crate) async fn get_timestamp_of_lsn(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Args(args): Args<LsnArgs>,
) -> Result<Json<String>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let lsn = lsn_to_read(&timeline, Some(args.lsn))?;
    let store = TimelineStore::new(timeline, app.ctx.clone());
    let time = timestamp_of_lsn(&store, lsn).await.map_err(not_readable)?.and_then(moment::from_pg);
    let none = || ApiError::precondition(format!("no commit up to LSN {lsn} has left its time"));
    time.map(|time| Json(moment::print(time))).ok_or_else(none)
}

/// Keeps an LSN readable for a while.
#[utoipa::path(post, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/lsn_lease", tag = "LSNs",
    params(TimelinePath), request_body = LsnBody,
    responses((status = 200, body = LeaseAnswer), (status = 412, body = ErrorBody)))]
pub(crate) async fn lsn_lease(
    State(app): State<App>,
    At(path): At<TimelinePath>,
    Body(body): Body<LsnBody>,
) -> Result<Json<LeaseAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let until = timeline.lease(body.lsn, app.manager.conf().lsn_lease_length).await.map_err(not_readable)?;
    Ok(Json(LeaseAnswer { valid_until: moment::print(until) }))
}
