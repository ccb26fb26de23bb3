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

/// The value of `key` as of `lsn`. Its newest piece is what lies above `rest`.
pub(super) async fn get(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    rest: Lsn,
    ctx: &RequestContext,
) -> Result<Bytes, StorageError> {
    // The ends of the pieces still to be applied, oldest last, and the value as of an LSN below them.
    let (mut ends, mut below) = (vec![lsn, rest], None::<(Lsn, Bytes)>);
    while let Some(&end) = ends.last() {
        let mut history = collect_key(state, key, end, ctx).await?;
        if let Some(rest) = history.rest {
            match below.take_if(|(lsn, _)| *lsn >= rest) {
                Some(value) => put_upon(&mut history, value),
                None => {
                    ends.push(rest);
                    continue;
                }
            }
        }
        below = Some((end, rebuild(key, end, history, &state.redo_settings())?));
        ends.pop();
    }
    below.map(|(_, value)| value).ok_or(StorageError::MissingKey { key, lsn })
}

/// Makes `value`, which includes all changes up to its LSN, the base of the records above that LSN.
fn put_upon(history: &mut KeyHistory, (lsn, value): (Lsn, Bytes)) {
    history.records.retain(|(at, _)| *at > lsn);
    history.image = Some((lsn, value));
    history.rest = None;
}
