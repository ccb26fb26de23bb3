//! Catalog blocks, which every server reads when it starts and when a client connects. A boot image includes them, so
//! that the first query does not request them one by one.

use std::collections::{BTreeMap, BTreeSet};

use pageserver_api::boot_image::{CATALOG_INDEX_NAME, CATALOG_PAGES_NAME, CatalogBlock, CatalogIndex};
use pageserver_api::reltag::{BlockNumber, MAIN_FORK, RelTag};
use wal_decoder::tablespaces::TablespaceTable;

use super::cluster::{Relations, tablespace_oid};
use super::relations::{PAGES_PER_READ, read};
use super::request::{BackupError, Sink};
use super::tar::Tar;
use crate::listing::Listing;
use crate::store::PageStore;
use errors::StorageError;

const PAGE_SIZE: usize = 8192;
/// Maximum per file. A larger catalog has grown with the user's tables, and few of its blocks are needed.
const BLOCKS_PER_FILE: BlockNumber = 128;
/// Maximum in total: 16 MiB, the catalogs of about six databases.
const BLOCKS_MAX: u64 = 2048;
/// `template1`, which nobody connects to, and `template0` from version 15 on.
const TEMPLATES: [u32; 2] = [1, 4];

/// OIDs of catalogs, each followed by those of its indexes.
const CATALOGS: [u32; 112] = [
    1260, 2676, 2677, 1261, 2694, 2695, 1262, 2671, 2672, 1213, 2697, 2698, 2964, 2965, 3592, 3593, // shared
    1259, 2662, 2663, 3455, 1249, 2658, 2659, 1255, 2690, 2691, 1247, 2703, 2704, // pg_class to pg_type
    2610, 2678, 2679, 2616, 2686, 2687, 2617, 2688, 2689, 2602, 2653, 2654, 2756, // pg_index to pg_amop
    2603, 2655, 2757, 2753, 2754, 2755, 2601, 2651, 2652, 2615, 2684, 2685, 2618, 2692, 2693, // to pg_rewrite
    2619, 2696, 2604, 2656, 2657, 2606, 2664, 2665, 2666, 2667, 2579, 2605, 2660, 2661, // to pg_cast
    2620, 2699, 2701, 2702, 2600, 2650, 2612, 2681, 2682, 2611, 2680, 2187, 3079, 3080, 3081, // to pg_extension
    3456, 3085, 3164, 3541, 3542, 2228, 3381, 3379, 3997, 3380, 3350, 3351, 826, 827, 828, // to pg_default_acl
    6104, 6110, 6111, 6106, 6112, 6113, 3466, 3467, 3468, 1417, 1418, // to pg_event_trigger and foreign servers
];

/// Writes the blocks and their index.
pub(super) async fn write<S: PageStore, W: Sink>(
    listing: &Listing<'_, S>,
    checksums: bool,
    relations: &Relations,
    tablespaces: &TablespaceTable,
    tar: &mut Tar<'_, W>,
) -> Result<(), BackupError> {
    let chosen = choose(relations, tablespaces)?;
    let count: u64 = chosen.values().map(|(_, blocks)| u64::from(*blocks)).sum();
    tar.begin_beside(CATALOG_PAGES_NAME, count * PAGE_SIZE as u64).await?;
    let mut index = CatalogIndex::default();
    for (rel, (in_keys, blocks)) in chosen {
        for first in (0..blocks).step_by(PAGES_PER_READ as usize) {
            let end = blocks.min(first + PAGES_PER_READ);
            let pages = read(listing, checksums, in_keys, first, end).await?;
            let entry = |(block, page): (u32, &[u8])| CatalogBlock { rel, block, crc: utils::crc32c::crc32c(page) };
            index.0.extend((first..end).zip(pages.chunks(PAGE_SIZE)).map(entry));
            tar.content(pages).await?;
        }
    }
    tar.end_file().await?;
    Ok(tar.file_beside(CATALOG_INDEX_NAME, &index.encode()).await?)
}

/// Forks, with their tablespace as OID: the fork as named in keys, and the number of blocks to include.
type Chosen = BTreeMap<RelTag, (RelTag, BlockNumber)>;

fn choose(relations: &Relations, tablespaces: &TablespaceTable) -> Result<Chosen, StorageError> {
    let (mut chosen, mut left) = (Chosen::new(), BLOCKS_MAX);
    let mut databases: Vec<_> =
        relations.mapped.iter().filter(|((_, dbnode), _)| !TEMPLATES.contains(dbnode)).collect();
    // Shared catalogs have database 0, so they come first.
    databases.sort_by_key(|((_, dbnode), _)| *dbnode);
    for ((spcnode, dbnode), mapped) in databases {
        let (spcnode, dbnode) = (*spcnode, *dbnode);
        let mapped: BTreeMap<u32, u32> = mapped.iter().copied().collect();
        let files: BTreeSet<u32> = CATALOGS.iter().map(|oid| *mapped.get(oid).unwrap_or(oid)).collect();
        for relnode in files {
            let rel = RelTag { spcnode, dbnode, relnode, forknum: MAIN_FORK };
            let Some(blocks) = relations.forks.get(&rel) else { continue };
            let blocks = (*blocks).min(BLOCKS_PER_FILE);
            let Some(rest) = left.checked_sub(blocks.into()) else { return Ok(chosen) };
            left = rest;
            let by_oid = RelTag { spcnode: tablespace_oid(tablespaces, spcnode)?, ..rel };
            chosen.insert(by_oid, (rel, blocks));
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fork(spcnode: u32, dbnode: u32, relnode: u32, blocks: u32) -> (RelTag, BlockNumber) {
        (RelTag { spcnode, dbnode, relnode, forknum: MAIN_FORK }, blocks)
    }

    #[test]
    fn catalogs_are_chosen_by_oid_or_map_within_the_budget() {
        let mut forks = BTreeMap::from([fork(1664, 0, 1262, 1), fork(1663, 5, 20_000, 9), fork(1663, 1, 1259, 9)]);
        forks.extend([fork(1663, 5, 16_500, 14), fork(1663, 5, 1259, 3), fork(1663, 5, 2619, 5000)]);
        let mapped = BTreeMap::from([((1664, 0), vec![]), ((1663, 1), vec![]), ((1663, 5), vec![(1259, 16_500)])]);
        let mut relations = Relations { forks, mapped };
        let chosen = choose(&relations, &TablespaceTable::default()).unwrap();
        let found: Vec<_> = chosen.iter().map(|(rel, (_, blocks))| (rel.dbnode, rel.relnode, *blocks)).collect();
        assert_eq!(found, [(5, 2619, 128), (5, 16_500, 14), (0, 1262, 1)]);
        for dbnode in 100..200 {
            relations.forks.extend([fork(1663, dbnode, 1259, 1000)]);
            relations.mapped.insert((1663, dbnode), vec![]);
        }
        let chosen = choose(&relations, &TablespaceTable::default()).unwrap();
        let total: u32 = chosen.values().map(|(_, blocks)| blocks).sum();
        assert!((1900..=2048).contains(&total), "{total}");
        assert!(!chosen.keys().any(|rel| rel.dbnode == 1));
    }
}
