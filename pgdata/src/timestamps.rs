//! Commit times by LSN: ingest leaves marks, and a search over them finds the LSN for a time.
//!
//! The mark at an LSN is the newest commit time in the history up to there, exact to a millisecond: later commits
//! within the same millisecond leave no mark. Since marks never decrease, a time is found by bisection even where
//! clocks went back.

use bytes::Bytes;
use pageserver_api::key::COMMIT_TIME_KEY;
use utils::lsn::Lsn;

use super::directory::malformed;
use crate::store::PageStore;
use errors::StorageError;

/// Microseconds since 2000-01-01 00:00 UTC (`TimestampTz`).
pub type PgTimestamp = i64;

/// Minimum distance of marks, in microseconds.
const MARK_STEP: PgTimestamp = 1000;

/// Distance of neighboring record positions: records are aligned to it (`MAXALIGN`).
const ALIGN: u64 = 8;

/// Where a time lies in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LsnByTimestamp {
    /// No commit up to this LSN is after the time, but the next one is.
    Present(Lsn),
    /// No commit is after the time: the last LSN.
    Future(Lsn),
    /// All commits are after the time: the first readable LSN.
    Past(Lsn),
    /// No commit is known: the last LSN.
    NoData(Lsn),
}

/// Whether a commit at `time` leaves a mark if the last mark was at `last`.
pub(crate) fn leaves_mark(last: Option<PgTimestamp>, time: PgTimestamp) -> bool {
    last.is_none_or(|last| time.div_euclid(MARK_STEP) > last.div_euclid(MARK_STEP))
}

/// Encodes a mark.
pub(crate) fn encode_mark(time: PgTimestamp) -> Bytes {
    Bytes::copy_from_slice(&time.to_be_bytes())
}

/// The newest commit time up to `lsn`; `None` if none is known.
pub async fn timestamp_of_lsn<S: PageStore>(store: &S, lsn: Lsn) -> Result<Option<PgTimestamp>, StorageError> {
    let Some(bytes) = store.get(COMMIT_TIME_KEY, lsn).await? else { return Ok(None) };
    match <[u8; 8]>::try_from(&bytes[..]) {
        Ok(bytes) => Ok(Some(PgTimestamp::from_be_bytes(bytes))),
        Err(_) => Err(malformed(COMMIT_TIME_KEY, &format!("{} bytes", bytes.len()))),
    }
}

/// Finds `time` in the history from `first` to `last`.
pub async fn lsn_by_timestamp<S: PageStore>(
    store: &S,
    time: PgTimestamp,
    first: Lsn,
    last: Lsn,
) -> Result<LsnByTimestamp, StorageError> {
    match timestamp_of_lsn(store, last).await? {
        None => return Ok(LsnByTimestamp::NoData(last)),
        Some(newest) if newest <= time => return Ok(LsnByTimestamp::Future(last)),
        Some(_) => {}
    }
    if timestamp_of_lsn(store, first).await?.is_some_and(|oldest| oldest > time) {
        return Ok(LsnByTimestamp::Past(first));
    }
    // Up to `low` nothing is after the time; at `high` something is.
    let (mut low, mut high) = (first, last);
    while high.0 - low.0 > ALIGN {
        let half = ((high.0 - low.0) / 2 / ALIGN * ALIGN).max(ALIGN);
        let middle = low + half;
        match timestamp_of_lsn(store, middle).await? {
            Some(mark) if mark > time => high = middle,
            _ => low = middle,
        }
    }
    let any_before = timestamp_of_lsn(store, low).await?.is_some();
    Ok(if any_before { LsnByTimestamp::Present(low) } else { LsnByTimestamp::Past(first) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::memory::MemoryStore;

    const FIRST: u64 = 0x1000;

    fn store_of(marks: &[(u64, PgTimestamp)], last: u64) -> MemoryStore {
        let store = MemoryStore::new(|_, _, _, _| panic!("marks are whole values"));
        store.set_last(Lsn(last));
        marks.iter().for_each(|(lsn, time)| store.put(COMMIT_TIME_KEY, Lsn(*lsn), encode_mark(*time)));
        store
    }

    /// The expected answer, found by a linear search.
    fn expected(marks: &[(u64, PgTimestamp)], time: PgTimestamp, last: u64) -> LsnByTimestamp {
        let after = marks.iter().find(|(_, mark)| *mark > time);
        match (after, marks.first()) {
            (_, None) => LsnByTimestamp::NoData(Lsn(last)),
            (None, _) => LsnByTimestamp::Future(Lsn(last)),
            (Some((lsn, mark)), Some(first)) if (lsn, mark) == (&first.0, &first.1) => LsnByTimestamp::Past(Lsn(FIRST)),
            (Some((lsn, _)), _) => LsnByTimestamp::Present(Lsn(lsn - ALIGN)),
        }
    }

    proptest! {
        #[test]
        fn a_moment_is_found(steps in prop::collection::vec((1..50u64, 1..5000i64), 0..40), time in -10..100_000i64) {
            let (mut lsn, mut at, mut marks) = (FIRST, 0, Vec::new());
            for (distance, later) in steps {
                (lsn, at) = (lsn + distance * ALIGN, at + later);
                marks.push((lsn, at));
            }
            let last = lsn + 8 * ALIGN;
            let store = store_of(&marks, last);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let found = runtime.block_on(lsn_by_timestamp(&store, time, Lsn(FIRST), Lsn(last))).unwrap();
            prop_assert_eq!(found, expected(&marks, time, last));
        }
    }

    #[test]
    fn marks_are_a_millisecond_apart() {
        assert!(leaves_mark(None, -5));
        assert!(!leaves_mark(Some(1000), 1999));
        assert!(leaves_mark(Some(1999), 2000));
        assert!(!leaves_mark(Some(5000), 4000));
        assert!(leaves_mark(Some(-1), 0));
    }
}
