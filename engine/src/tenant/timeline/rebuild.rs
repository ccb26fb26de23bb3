//! From the versions of a key to its value: the interface to redo.

mod implicit;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::record::WalRecord;
use postgres_formats::record::decode;
use redo::{Applied, Chain};
use utils::lsn::Lsn;

use self::implicit::{PAGE_SIZE, Page};
use super::redo_settings::RedoSettings;
use crate::tenant::storage_layer::KeyHistory;
use errors::StorageError;
use metrics::{self, METRICS};

/// Fewer pages than this are rebuilt in the task of the read.
const PARALLEL_MIN: usize = 32;

/// The effect of a record, as far as it tells about earlier versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It was applied, or did not need to be.
    Done,
    /// It changes a page that must exist, but this one is all zero.
    NoPage,
}

/// The value of `key` as of `lsn`, from the versions in `history`.
///
/// Without records the value is the image, of any length. With records it is a page: they are applied, oldest first,
/// to the image, or to an all-zero page if the oldest record initializes the page itself.
pub(super) fn rebuild(key: Key, lsn: Lsn, history: KeyHistory, redo: &RedoSettings) -> Result<Bytes, StorageError> {
    let KeyHistory { image, records, .. } = history;
    let failed = |at: Lsn, reason: String| {
        METRICS.wal_redo_errors.inc();
        StorageError::Redo { key, lsn, reason: format!("at LSN {at}: {reason}") }
    };
    let Some((oldest, first)) = records.last() else {
        return image.map(|(_, image)| image).ok_or(StorageError::MissingKey { key, lsn });
    };
    let _timer = metrics::timer(&METRICS.wal_redo_seconds);
    let has_image = image.is_some();
    let page = match image {
        Some((_, image)) => page_of(&image).map_err(|reason| failed(*oldest, reason))?,
        None if implicit::needs_page(first) => return Err(failed(*oldest, "there is no page to change".to_owned())),
        None => Box::new([0; PAGE_SIZE]),
    };
    let mut chain = Chain::new(page);
    for (number, (at, record)) in records.iter().rev().enumerate() {
        let effect;
        (chain, effect) = apply(key, chain, *at, record, redo).map_err(|reason| failed(*at, reason))?;
        // On an image that is all zero, Postgres skips the record too: a later one drops the page.
        if effect == Effect::NoPage && number == 0 && !has_image {
            return Err(failed(*at, "the oldest record found needs an earlier version of the page".to_owned()));
        }
    }
    let page: Box<[u8]> = chain.into_page();
    Ok(Bytes::from(page))
}

fn page_of(image: &Bytes) -> Result<Box<Page>, String> {
    image.to_vec().try_into().map_err(|image: Vec<u8>| format!("a value of {} bytes is no page", image.len()))
}

fn apply(key: Key, chain: Chain, at: Lsn, record: &WalRecord, redo: &RedoSettings) -> Result<(Chain, Effect), String> {
    let WalRecord::Postgres { block_id, record, .. } = record else {
        return chain.change(|page| implicit::apply(key, page, record)).map(|chain| (chain, Effect::Done));
    };
    let redo = redo.at(at);
    let record = decode(redo.version, record).map_err(|error| error.to_string())?;
    let (chain, applied) = chain.apply(&redo, &record, *block_id, at.0).map_err(|error| error.to_string())?;
    let effect = match applied {
        Applied::SkippedNew => Effect::NoPage,
        Applied::Changed | Applied::Unchanged | Applied::SkippedByLsn => Effect::Done,
    };
    Ok((chain, effect))
}

/// Rebuilds all of `histories`, on several threads if many. Takes memory for the histories and the results only.
pub(super) async fn rebuild_all(
    histories: BTreeMap<Key, KeyHistory>,
    lsn: Lsn,
    redo: RedoSettings,
) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
    let redo = Arc::new(redo);
    let one = move |(key, history)| (key, rebuild(key, lsn, history, &redo));
    let with_records = histories.values().filter(|history| !history.records.is_empty()).count();
    if with_records < PARALLEL_MIN {
        return Ok(histories.into_iter().map(one).collect());
    }
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let share = histories.len().div_ceil(threads).max(1);
    let mut histories = histories.into_iter();
    let mut parts = Vec::with_capacity(threads);
    loop {
        let part: Vec<_> = histories.by_ref().take(share).collect();
        if part.is_empty() {
            break;
        }
        let one = one.clone();
        parts.push(env::spawn::blocking(move || part.into_iter().map(one).collect::<Vec<_>>()));
    }
    let mut rebuilt = BTreeMap::new();
    for part in parts {
        let part = part.await.map_err(|error| StorageError::Internal(format!("rebuilding of pages: {error}")))?;
        rebuilt.extend(part);
    }
    Ok(rebuilt)
}

#[cfg(test)]
mod tests;
