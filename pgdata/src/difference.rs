//! Compares two timelines, each as of an LSN: which relations differ, and in how many blocks.

use std::collections::{BTreeMap, BTreeSet};

use pageserver_api::key::{Key, rel_block_key};
use pageserver_api::keyspace::KeySpaceBuilder;
use pageserver_api::reltag::{BlockNumber, RelTag};
use utils::lsn::Lsn;

use super::listing::Listing;
use crate::store::PageStore;
use errors::StorageError;

/// Number of blocks compared at a time.
const BLOCKS_AT_ONCE: usize = 256;

/// A relation fork that differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelationDifference {
    /// The fork.
    pub rel: RelTag,
    /// Its sizes in blocks on the two sides; `None` where it does not exist.
    pub sizes: (Option<BlockNumber>, Option<BlockNumber>),
    /// Number of blocks that differ or that one side lacks.
    pub blocks: u64,
}

/// Compares `one` and `other`. Pages outside `candidates` must be known to be equal.
pub async fn difference<S: PageStore>(
    one: (&S, Lsn),
    other: (&S, Lsn),
    candidates: &BTreeSet<Key>,
) -> Result<Vec<RelationDifference>, StorageError> {
    let (ours, theirs) = (sizes(one).await?, sizes(other).await?);
    let rels: BTreeSet<RelTag> = ours.keys().chain(theirs.keys()).copied().collect();
    let mut found = Vec::new();
    for rel in rels {
        let sizes = (ours.get(&rel).copied(), theirs.get(&rel).copied());
        let (here, there) = (sizes.0.unwrap_or(0), sizes.1.unwrap_or(0));
        let common = here.min(there);
        let keys = candidates.range(rel_block_key(rel, 0)..rel_block_key(rel, common)).copied().collect::<Vec<_>>();
        let mut blocks = u64::from(here.abs_diff(there));
        for chunk in keys.chunks(BLOCKS_AT_ONCE) {
            blocks += differing(one, other, chunk).await?;
        }
        if blocks > 0 || sizes.0.is_some() != sizes.1.is_some() {
            found.push(RelationDifference { rel, sizes, blocks });
        }
    }
    Ok(found)
}

async fn sizes<S: PageStore>((store, lsn): (&S, Lsn)) -> Result<BTreeMap<RelTag, BlockNumber>, StorageError> {
    let listing = Listing::new(store, lsn);
    let mut all = BTreeMap::new();
    for (spcnode, dbnode) in listing.databases().await?.into_keys() {
        all.append(&mut listing.relations(spcnode, dbnode).await?);
    }
    Ok(all)
}

async fn differing<S: PageStore>(one: (&S, Lsn), other: (&S, Lsn), keys: &[Key]) -> Result<u64, StorageError> {
    let mut space = KeySpaceBuilder::default();
    keys.iter().for_each(|key| space.add_key(*key));
    let space = space.build();
    let (ours, theirs) = (one.0.get_many(&space, one.1).await?, other.0.get_many(&space, other.1).await?);
    Ok(keys.iter().filter(|key| ours.get(key) != theirs.get(key)).count() as u64)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pageserver_api::key::{DBDIR_KEY, rel_entry_key, rel_size_key};

    use super::*;
    use crate::directory::{DbDir, EXISTS, encode, encode_size};
    use crate::memory::MemoryStore;

    fn rel(relnode: u32) -> RelTag {
        RelTag { spcnode: 1663, dbnode: 5, relnode, forknum: 0 }
    }

    fn store(rels: &[(u32, &[u8])]) -> MemoryStore {
        let store = MemoryStore::new(|_, _, _, _| panic!("whole values only"));
        let lsn = Lsn(8);
        store.put(DBDIR_KEY, lsn, encode(&DbDir::from([((1663, 5), true)])));
        for (relnode, pages) in rels {
            let rel = rel(*relnode);
            store.put(rel_entry_key(rel), lsn, Bytes::from_static(EXISTS));
            store.put(rel_size_key(rel), lsn, encode_size(pages.len() as u32));
            for (block, fill) in (0..).zip(*pages) {
                store.put(rel_block_key(rel, block), lsn, vec![*fill; 8192].into());
            }
        }
        store.set_last(lsn);
        store
    }

    #[tokio::test]
    async fn blocks_sizes_and_existence_are_compared() {
        let one = store(&[(10, &[1, 2, 3]), (11, &[1]), (12, &[]), (13, &[1, 1])]);
        let other = store(&[(10, &[1, 9, 3, 4, 5]), (11, &[1]), (13, &[1, 2]), (14, &[7])]);
        let candidates = (10..15).flat_map(|n| (0..9).map(move |block| rel_block_key(rel(n), block))).collect();
        let found = difference((&one, Lsn(8)), (&other, Lsn(8)), &candidates).await.unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.rel.relnode, one.sizes, one.blocks)).collect();
        let expected = [
            (10, (Some(3), Some(5)), 3),
            (12, (Some(0), None), 0),
            (13, (Some(2), Some(2)), 1),
            (14, (None, Some(1)), 1),
        ];
        assert_eq!(found, expected);
        let none = difference((&one, Lsn(8)), (&one, Lsn(8)), &candidates).await.unwrap();
        assert!(none.is_empty(), "{none:?}");
    }
}
