//! Pages with very long histories: rebuilt piece by piece, so that their records are not all in memory at once.
//!
//! Versions are found from new to old, and applied from old to new. So it is first looked where each piece begins, and
//! what was read on the way is forgotten; then each piece is read once more, and applied to what the one below it made.

use bytes::Bytes;
use pageserver_api::key::Key;
use utils::lsn::Lsn;

use super::collect::collect_key;
use crate::context::RequestContext;
use crate::tenant::storage_layer::KeyHistory;
use crate::tenant::timeline::rebuild::rebuild;
use crate::tenant::timeline::state::TimelineState;
use errors::StorageError;

/// The value of `key` as of `lsn`, of which the newest piece is what is above `rest`.
pub(super) async fn get(
    state: &TimelineState,
    key: Key,
    lsn: Lsn,
    rest: Lsn,
    ctx: &RequestContext,
) -> Result<Bytes, StorageError> {
    // Where pieces end that are to be applied, the oldest last; and the value as of an LSN below them.
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

/// Makes `value`, which has all changes up to an LSN, what the records above that are applied to.
fn put_upon(history: &mut KeyHistory, (lsn, value): (Lsn, Bytes)) {
    history.records.retain(|(at, _)| *at > lsn);
    history.image = Some((lsn, value));
    history.rest = None;
}
