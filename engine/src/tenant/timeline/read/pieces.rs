//! Rebuilds pages with very long histories piece by piece, so that their records are not all in memory at once.
//!
//! Versions are found from new to old, but applied from old to new. So a first pass only finds where each piece
//! begins, and discards what it reads; then each piece is read again and applied to the result of the one below it.

use bytes::Bytes;
use pageserver_api::key::Key;
use utils::lsn::Lsn;

use super::collect::collect_key;
use crate::context::RequestContext;
use crate::tenant::storage_layer::KeyHistory;
use crate::tenant::timeline::rebuild::rebuild;
use crate::tenant::timeline::state::TimelineState;
use errors::StorageError;

/// The value of `key` as of `lsn`, and how many records were applied. Its newest piece is what lies above `rest`.
pub(super) async fn get(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    rest: Lsn,
    ctx: &RequestContext,
) -> Result<(Bytes, usize), StorageError> {
    match by_pieces(state, key, lsn, vec![lsn, rest], ctx).await {
        // The older pieces were inherited, and the timeline was detached meanwhile: now an image is above them.
        Err(StorageError::MissingKey { .. }) => by_pieces(state, key, lsn, vec![lsn], ctx).await,
        found => found,
    }
}

/// As [`get`]. `ends` are where pieces end that are known already, the oldest last.
async fn by_pieces(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    mut ends: Vec<Lsn>,
    ctx: &RequestContext,
) -> Result<(Bytes, usize), StorageError> {
    // The value as of an LSN below those still to be applied.
    let mut below = None::<(Lsn, Bytes)>;
    let mut records = 0;
    while let Some(&end) = ends.last() {
        let mut history = collect_key(state, key, (end, lsn), ctx).await?;
        if let Some(rest) = history.rest {
            match below.take_if(|(lsn, _)| *lsn >= rest) {
                Some(value) => put_upon(&mut history, value),
                None => {
                    ends.push(rest);
                    continue;
                }
            }
        }
        records += history.records.len();
        below = Some((end, rebuild(key, end, history, &state.redo_settings())?));
        ends.pop();
    }
    below.map(|(_, value)| (value, records)).ok_or(StorageError::MissingKey { key, lsn })
}

/// Makes `value`, which includes all changes up to its LSN, the base of the records above that LSN.
fn put_upon(history: &mut KeyHistory, (lsn, value): (Lsn, Bytes)) {
    history.records.retain(|(at, _)| *at > lsn);
    history.image = Some((lsn, value));
    history.rest = None;
}
