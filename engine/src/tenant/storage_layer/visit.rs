//! Shared by the visits of layers: selects the versions that a read wants, and reads them.

use std::ops::Range;

use bytes::Bytes;
use layer_format::index::IndexEntry;
use pageserver_api::key::{CompactKey, Key};
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use super::ReconstructState;
use super::block_source::{BlockSource, Extent};
use errors::StorageError;

/// Maximum bytes of values read in one round of a visit.
const ROUND_BYTES_MAX: u64 = 32 << 20;

/// The versions of one key that a visit wants, newest first.
#[derive(Debug)]
pub(super) struct KeyVersions {
    pub(super) key: Key,
    pub(super) versions: Vec<IndexEntry>,
}

/// The first and last compact key of a half-open range of keys; `None` if it contains no compact key.
///
/// Keys whose second field exceeds 16 bits have no compact form and are never stored.
pub(super) fn compact_bounds(range: &Range<Key>) -> Option<(CompactKey, CompactKey)> {
    let first = round_up(range.start)?;
    let last = match round_up(range.end) {
        Some(end) => CompactKey::from(end.to_i128().checked_sub(1).filter(|last| *last >= 0)?),
        None => CompactKey::from(i128::MAX),
    };
    (first <= last).then_some((first, last))
}

/// The smallest compact key at or above `key`.
fn round_up(key: Key) -> Option<CompactKey> {
    if key.is_compactable() {
        return Some(key.to_compact());
    }
    let next_kind = key.field1.checked_add(1).filter(|kind| *kind <= 0x7F && key.field1 <= 0x7F)?;
    Some(Key { field1: next_kind, ..Key::MIN }.to_compact())
}

/// Picks the versions that a read of `lsn_range` wants from entries in order of (key, LSN).
pub(super) fn collect_versions(
    entries: impl Iterator<Item = IndexEntry>,
    lsn_range: &Range<Lsn>,
    state: &ReconstructState,
    wanted: &mut Vec<KeyVersions>,
) {
    let mut current: Option<(CompactKey, bool, Vec<IndexEntry>)> = None;
    for entry in entries.filter(|entry| lsn_range.contains(&entry.lsn)) {
        match &mut current {
            Some((key, skip, versions)) if *key == entry.key => push_newer(versions, entry, *skip),
            _ => {
                end_key(current.take(), wanted);
                let skip = state.is_complete(&Key::from_compact(entry.key));
                let mut versions = Vec::new();
                push_newer(&mut versions, entry, skip);
                current = Some((entry.key, skip, versions));
            }
        }
    }
    end_key(current, wanted);
}

fn push_newer(versions: &mut Vec<IndexEntry>, entry: IndexEntry, skip: bool) {
    if skip {
        return;
    }
    if entry.flag {
        // Nothing older is needed.
        versions.clear();
    }
    versions.push(entry);
}

fn end_key(current: Option<(CompactKey, bool, Vec<IndexEntry>)>, wanted: &mut Vec<KeyVersions>) {
    if let Some((key, false, mut versions)) = current {
        versions.reverse();
        wanted.push(KeyVersions { key: Key::from_compact(key), versions });
    }
}

/// Reads the wanted versions and adds them to `state`.
pub(super) async fn read_versions(
    source: &BlockSource,
    mut wanted: Vec<KeyVersions>,
    state: &mut ReconstructState,
) -> Result<(), StorageError> {
    let mut bases: Vec<_> = wanted.iter_mut().filter_map(|key| cached_base(key, state)).collect();
    let rests: Vec<_> = wanted.iter_mut().filter_map(|key| cut(key, state)).collect();
    bases.retain(|(key, ..)| rests.iter().all(|(cut, _)| cut != key));
    let mut rest = wanted.as_slice();
    while !rest.is_empty() {
        let (round, later) = rest.split_at(round_len(rest));
        read_round(source, round, state).await?;
        rest = later;
    }
    for (key, lsn, value) in bases {
        state.push_cached(key, lsn, value);
    }
    for (key, lsn) in rests {
        state.leave_rest(key, lsn);
    }
    Ok(())
}

/// Drops versions beyond the limit. Returns the key, and the LSN of the newest version dropped, if any.
fn cut(wanted: &mut KeyVersions, state: &mut ReconstructState) -> Option<(Key, Lsn)> {
    let admitted = state.admit(wanted.key, wanted.versions.iter().map(|version| version.len));
    let lsn = wanted.versions.get(admitted)?.lsn;
    wanted.versions.truncate(admitted);
    Some((wanted.key, lsn))
}

/// The newest cached value of a key; only the versions after it are still wanted.
pub(super) fn cached_base(wanted: &mut KeyVersions, state: &ReconstructState) -> Option<(Key, Lsn, Bytes)> {
    let cached = |(at, entry): (usize, &IndexEntry)| Some((at, entry.lsn, state.cached(&wanted.key, entry.lsn)?));
    let (at, lsn, value) = wanted.versions.iter().enumerate().find_map(cached)?;
    wanted.versions.truncate(at);
    Some((wanted.key, lsn, value))
}

/// How many keys to read in one round: at least one.
fn round_len(wanted: &[KeyVersions]) -> usize {
    let mut bytes = 0;
    let fits = |key: &&KeyVersions| {
        bytes += key.versions.iter().map(|version| u64::from(version.len)).sum::<u64>();
        bytes <= ROUND_BYTES_MAX
    };
    wanted.iter().take_while(fits).count().max(1)
}

async fn read_round(
    source: &BlockSource,
    round: &[KeyVersions],
    state: &mut ReconstructState,
) -> Result<(), StorageError> {
    let extents: Vec<Extent> = round
        .iter()
        .flat_map(|key| &key.versions)
        .map(|entry| Extent { position: entry.position, len: entry.len })
        .collect();
    let (values, costs) = source.read_values_at(&extents, state.pace).await?;
    state.note_data_reads(costs);
    let mut values = values.into_iter();
    for KeyVersions { key, versions } in round {
        for (entry, bytes) in versions.iter().zip(values.by_ref()) {
            let value = Value::decode(&bytes).map_err(|error| {
                let block = layer_format::block::block_of(entry.position);
                source.corrupt(block, format!("value of key {key} at LSN {}: {error}", entry.lsn))
            })?;
            state.push(*key, entry.lsn, value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_ranges_without_compact_form() {
        assert_eq!(compact_bounds(&(Key::MIN..Key::MAX)), Some((Key::MIN.to_compact(), CompactKey::from(i128::MAX))));
        let key = Key { field2: 7, field6: 3, ..Key::MIN };
        assert_eq!(compact_bounds(&(key..key.next())), Some((key.to_compact(), key.to_compact())));
        let wide = Key { field2: 0x1_0000, ..Key::MIN };
        assert_eq!(compact_bounds(&(wide..wide.next())), None);
        assert_eq!(compact_bounds(&(Key::MIN..Key::MIN)), None);
    }
}
