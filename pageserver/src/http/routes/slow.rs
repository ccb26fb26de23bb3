//! The slow reads of a timeline, and where their time went.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::Serialize;
use utils::lsn::Lsn;
use utoipa::ToSchema;

use crate::http::app::App;
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, TimelinePath};
use crate::http::ids::{KeyText, LsnText};
use crate::http::moment;
use engine::slow_reads::SlowRead;

/// A slow read.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SlowReadInfo {
    /// When it ended (RFC 3339).
    ended: String,
    /// Microseconds that it took: the four that follow, together.
    micros: u64,
    /// Microseconds waited for WAL that had not arrived, for a turn, and for memory.
    wait_micros: u64,
    /// Microseconds that the search of indexes took.
    plan_micros: u64,
    /// Microseconds waited for the disk and the bucket.
    fetch_micros: u64,
    /// Microseconds that rebuilding pages took.
    redo_micros: u64,
    /// The first of its keys.
    #[schema(value_type = KeyText)]
    first_key: String,
    /// How many keys were read.
    keys: usize,
    /// The LSN read at.
    #[schema(value_type = LsnText)]
    lsn: Lsn,
    /// Layers searched.
    layers: u32,
    /// Key filters asked.
    filters: u32,
    /// Records found.
    records: usize,
    /// Bytes of layers read from the local disk.
    local_bytes: u64,
    /// Requests to the bucket.
    bucket_requests: u64,
    /// Bytes that these fetched.
    bucket_bytes: u64,
    /// The layers visited, in words.
    visited: String,
    /// How many other slow reads, of any timeline, are not listed since the one before.
    untold: u64,
}

/// Slow reads of a timeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SlowReadsAnswer {
    /// Microseconds from which on a read is slow; 0 if none is.
    threshold_micros: u64,
    /// The newest first.
    reads: Vec<SlowReadInfo>,
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

impl From<SlowRead> for SlowReadInfo {
    fn from(read: SlowRead) -> Self {
        Self {
            ended: moment::print(read.ended),
            micros: micros(read.took),
            wait_micros: micros(read.wait),
            plan_micros: micros(read.plan),
            fetch_micros: micros(read.fetch),
            redo_micros: micros(read.redo),
            first_key: read.first_key.to_string(),
            keys: read.keys,
            lsn: read.lsn,
            layers: read.layers,
            filters: read.filters,
            records: read.records,
            local_bytes: read.local_bytes,
            bucket_requests: read.requests,
            bucket_bytes: read.fetched_bytes,
            visited: read.visited,
            untold: read.untold,
        }
    }
}

/// Lists the last slow reads: at most one of a second, and 256 of all timelines since the start.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/timeline/{timeline_id}/slow_reads", tag = "pages",
    params(TimelinePath), responses((status = 200, body = SlowReadsAnswer), (status = 404, body = ErrorBody)))]
pub(crate) async fn slow_reads(
    State(app): State<App>,
    At(path): At<TimelinePath>,
) -> Result<Json<SlowReadsAnswer>, ApiError> {
    let timeline = app.manager.get(path.tenant_shard_id, path.timeline_id)?;
    let threshold_micros = micros(app.manager.conf().slow_read_threshold);
    let reads = timeline.slow_reads().into_iter().map(SlowReadInfo::from).collect();
    Ok(Json(SlowReadsAnswer { threshold_micros, reads }))
}
