//! Explains one read: the layers that it visits, and what rebuilding its page takes.

use std::time::Duration;

use bytes::Bytes;
use pageserver_api::key::Key;
use utils::lsn::Lsn;

use super::collect::collect_traced;
use crate::context::RequestContext;
use crate::tenant::storage_layer::{ReadCosts, Visited};
use crate::tenant::timeline::rebuild::rebuild;
use crate::tenant::timeline::state::TimelineState;
use errors::StorageError;

/// How a read came to its value.
#[derive(Debug)]
pub struct ReadTrace {
    /// The layers that it visited, in this order.
    pub visits: Vec<Visited>,
    /// Number of records applied.
    pub records: usize,
    /// LSN of the image that they were applied to; `None` if the oldest record makes the page.
    pub image_lsn: Option<Lsn>,
    /// The page was longer than what is gathered at once: what is older than the visits tell was read in further
    /// pieces.
    pub in_pieces: bool,
    /// How long the search took, with all waits.
    pub search: Duration,
    /// What it cost: of its time, what was spent waiting, and fetching; the rest went to the search of indexes.
    pub costs: ReadCosts,
    /// How long rebuilding the value took.
    pub redo: Duration,
    /// The value, or why it cannot be rebuilt.
    pub value: Result<Bytes, StorageError>,
}

/// Reads `key` as of `lsn` as any other read does, but for the cache of rebuilt pages, and tells how.
pub(in crate::tenant::timeline) async fn explain(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    ctx: &RequestContext,
) -> Result<ReadTrace, StorageError> {
    let started = env::clock::now();
    let (history, visits, costs) = collect_traced(state, key, lsn, ctx).await?;
    let search = env::clock::now().saturating_duration_since(started);
    let (mut records, image_lsn) = (history.records.len(), history.image.as_ref().map(|(lsn, _)| *lsn));
    let in_pieces = history.rest.is_some();
    let started = env::clock::now();
    let value = match history.rest {
        None => rebuild(key, lsn, history, &state.redo_settings()),
        Some(rest) => super::pieces::get(state, key, lsn, rest, ctx).await.map(|(value, all)| {
            records = all;
            value
        }),
    };
    let redo = env::clock::now().saturating_duration_since(started);
    Ok(ReadTrace { visits, records, image_lsn, in_pieces, search, costs, redo, value })
}
