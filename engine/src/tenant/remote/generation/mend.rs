//! Repairs a damaged chain of generations on behalf of whoever takes the tenant over.
//!
//! If a generation was removed, it could be given out a second time, and two owners of one generation overwrite each
//! other's objects. If one was overwritten, it no longer records whether the tenant was deleted. What is known for
//! certain is which numbers were in use: every object carries one. So the chain is completed up to the largest of
//! these, and whoever takes the tenant over comes after all of them.

use std::collections::BTreeMap;

use futures_util::{StreamExt, TryStreamExt};
use pageserver_api::shard::TenantShardId;

use super::{MAX_LEN, Record, decode, make, parse};
use crate::tenant::remote::LayerList;
use crate::tenant::storage_layer::LayerFileName;
use errors::StorageError;
use remote_storage::{INDEX_PART_PREFIX, Listed, ORIGIN_PREFIX, RemotePath, RemoteStorage, RequestClass};

/// More generations than this are not recreated: such a number was never in use.
const MAX_MISSING: usize = 10_000;
/// Maximum number of concurrent requests.
const PARALLEL: usize = 16;

/// The state of a generation in the bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Found {
    Whole(Record),
    Damaged,
}

/// A generation to write, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Missing {
    generation: u32,
    void_through: u32,
    /// An object exists, but is damaged.
    damaged: bool,
}

/// Completes the chain up to the newest generation of which there is any trace. Does nothing if it is intact.
pub(crate) async fn mend(storage: &RemoteStorage, tenant: TenantShardId) -> Result<(), StorageError> {
    let objects = storage.list(RequestClass::Control, &RemotePath::tenant(&tenant)).await?;
    let (chain, traces) = sort(&objects, &RemotePath::generations(&tenant));
    let reading: Vec<_> = chain.into_iter().map(|generation| look(storage, tenant, generation)).collect();
    let found: BTreeMap<u32, Found> =
        futures_util::stream::iter(reading).buffer_unordered(PARALLEL).try_collect().await?;
    for missing in missing(&found, traces).map_err(|reason| no_chain(storage, tenant, &reason))? {
        let Missing { generation, void_through, damaged } = missing;
        let (path, record) = (RemotePath::generation(&tenant, generation), Record::new(false, void_through));
        tracing::warn!(%tenant, "{}: was damaged or missing, and is made anew", storage.name_of(&path));
        match damaged {
            true => storage.put(RequestClass::Control, &path, record.encode()?).await?,
            // Somebody else may have been faster.
            false => drop(make(storage, tenant, generation, &record).await?),
        }
    }
    Ok(())
}

/// The listed generations of the chain, and the last generation that has written anything else.
fn sort(objects: &[Listed], chain: &RemotePath) -> (Vec<u32>, u32) {
    let (mut listed, mut last) = (Vec::new(), 0);
    for object in objects {
        let name = object.path.file_name();
        match object.path.as_path().prefix_matches(chain.as_path()) {
            true => listed.extend(parse(name)),
            false => last = last.max(trace(name).unwrap_or(0)),
        }
    }
    (listed, last)
}

async fn look(storage: &RemoteStorage, tenant: TenantShardId, generation: u32) -> Result<(u32, Found), StorageError> {
    let path = RemotePath::generation(&tenant, generation);
    let bytes = storage.get(RequestClass::Control, &path, MAX_LEN).await?;
    Ok((generation, decode(&bytes).map_or(Found::Damaged, Found::Whole)))
}

fn no_chain(storage: &RemoteStorage, tenant: TenantShardId, reason: &str) -> StorageError {
    let name = storage.name_of(&RemotePath::generations(&tenant));
    StorageError::Invalid(format!("{name}: {reason}"))
}

/// The generation that wrote an object, according to its name.
pub(crate) fn trace(name: &str) -> Option<u32> {
    if let Some(list) = LayerList::parse(name) {
        return Some(list.generation);
    }
    match name.strip_prefix(INDEX_PART_PREFIX).or_else(|| name.strip_prefix(ORIGIN_PREFIX)) {
        Some(digits) => parse(digits),
        None => name.parse::<LayerFileName>().ok().map(|file| file.generation),
    }
}

/// The generations to write so that the chain is complete at least up to `traces`. A recreated one voids the same
/// index parts as the nearest intact one before it.
fn missing(found: &BTreeMap<u32, Found>, traces: u32) -> Result<Vec<Missing>, String> {
    let newest = found.keys().next_back().copied().unwrap_or(0).max(traces);
    let absent = (newest as usize).saturating_sub(found.len());
    if absent > MAX_MISSING {
        return Err(format!("{absent} generations before number {newest} are missing, this is no chain of ours"));
    }
    let (mut missing, mut void_through) = (Vec::new(), 0);
    for generation in 1..=newest {
        let there = found.get(&generation);
        match there {
            Some(Found::Whole(record)) => void_through = record.void_after(generation),
            _ => missing.push(Missing { generation, void_through, damaged: there.is_some() }),
        }
    }
    Ok(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_known_by_its_traces() {
        let whole = |deleted, void_through| Found::Whole(Record::new(deleted, void_through));
        let of = |generation, void_through, damaged| Missing { generation, void_through, damaged };
        let sound = BTreeMap::from([(1, whole(false, 0)), (2, whole(false, 0))]);
        assert_eq!(missing(&sound, 2), Ok(vec![]));
        assert_eq!(missing(&sound, 0), Ok(vec![]));
        assert_eq!(missing(&sound, 4), Ok(vec![of(3, 0, false), of(4, 0, false)]));
        assert_eq!(missing(&BTreeMap::new(), 1), Ok(vec![of(1, 0, false)]));
        let deleted = BTreeMap::from([(1, Found::Damaged), (2, whole(true, 2)), (4, Found::Damaged)]);
        assert_eq!(missing(&deleted, 1), Ok(vec![of(1, 0, true), of(3, 2, false), of(4, 2, true)]));
        let made_anew = BTreeMap::from([(3, whole(false, 2)), (5, Found::Damaged)]);
        let expected = [of(1, 0, false), of(2, 0, false), of(4, 2, false), of(5, 2, true)];
        assert_eq!(missing(&made_anew, 0), Ok(expected.to_vec()));
        assert!(missing(&sound, u32::MAX).is_err());
    }
}
