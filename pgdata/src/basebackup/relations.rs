//! Relation files.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use pageserver_api::key::rel_block_key;
use pageserver_api::reltag::{BlockNumber, INIT_FORK, MAIN_FORK, RelTag, fork_name};
use postgres_formats::page::{PageBytes, set_data_checksum};

use super::request::{BackupError, Extent, Sink};
use super::tar::Tar;
use crate::listing::Listing;
use crate::store::PageStore;
use errors::StorageError;

const PAGE_SIZE: u64 = 8192;
/// Pages per file (`RELSEG_SIZE`): 1 GiB.
const PAGES_PER_FILE: u32 = 131_072;
/// Pages read at once: 1 MiB.
pub(super) const PAGES_PER_READ: u32 = 128;

/// A database in a tablespace.
pub(super) struct Source<'a, S> {
    pub(super) listing: &'a Listing<'a, S>,
    pub(super) spcnode: u32,
    pub(super) dbnode: u32,
    /// Its directory in the archive.
    pub(super) dir: &'a str,
    /// Whether pages need checksums.
    pub(super) checksums: bool,
}

/// Writes the database's relations: all of them, or only those that a server cannot fetch from the timeline. Returns
/// the forks of all logged relations, with their sizes.
///
/// An unlogged relation has an init fork, which a server copies over the main fork during a clean shutdown; so the
/// main fork is written with the same contents.
pub(super) async fn write<S: PageStore, W: Sink>(
    source: &Source<'_, S>,
    extent: Extent,
    tar: &mut Tar<'_, W>,
) -> Result<BTreeMap<RelTag, BlockNumber>, BackupError> {
    let forks = source.listing.relations(source.spcnode, source.dbnode).await?;
    for (rel, blocks) in &forks {
        if rel.forknum == INIT_FORK {
            write_fork(source, *rel, *blocks, MAIN_FORK, tar).await?;
        }
        if rel.forknum == INIT_FORK || (extent == Extent::Full && is_logged(&forks, *rel)) {
            write_fork(source, *rel, *blocks, rel.forknum, tar).await?;
        }
    }
    let logged = forks.iter().filter(|(rel, _)| is_logged(&forks, **rel));
    Ok(logged.map(|(rel, blocks)| (*rel, *blocks)).collect())
}

fn is_logged(forks: &BTreeMap<RelTag, BlockNumber>, rel: RelTag) -> bool {
    !forks.contains_key(&rel.with_fork(INIT_FORK))
}

/// Writes `rel` as if it were the relation's fork `name`.
async fn write_fork<S: PageStore, W: Sink>(
    source: &Source<'_, S>,
    rel: RelTag,
    blocks: BlockNumber,
    name: u8,
    tar: &mut Tar<'_, W>,
) -> Result<(), BackupError> {
    let suffix = match (name, fork_name(name)) {
        (MAIN_FORK, _) | (_, None) => String::new(),
        (_, Some(fork)) => format!("_{fork}"),
    };
    let base = format!("{}/{}{suffix}", source.dir, rel.relnode);
    let mut first: BlockNumber = 0;
    loop {
        let end = blocks.min(first.saturating_add(PAGES_PER_FILE));
        let number = first / PAGES_PER_FILE;
        let path = if number == 0 { base.clone() } else { format!("{base}.{number}") };
        tar.begin_file(&path, u64::from(end - first) * PAGE_SIZE).await?;
        while first < end {
            let next = end.min(first.saturating_add(PAGES_PER_READ));
            tar.content(read(source.listing, source.checksums, rel, first, next).await?).await?;
            first = next;
        }
        tar.end_file().await?;
        if first >= blocks {
            return Ok(());
        }
    }
}

/// Reads pages `first..end`, and adds checksums if the cluster has them.
pub(super) async fn read<S: PageStore>(
    listing: &Listing<'_, S>,
    checksums: bool,
    rel: RelTag,
    first: BlockNumber,
    end: BlockNumber,
) -> Result<Bytes, StorageError> {
    let pages = listing.dense(rel_block_key(rel, first)..rel_block_key(rel, end)).await?;
    let mut bytes = BytesMut::with_capacity((u64::from(end - first) * PAGE_SIZE) as usize);
    for (block, page) in (first..end).zip(pages.into_values()) {
        let mut page = <PageBytes>::try_from(&page[..])
            .map_err(|_| StorageError::Internal(format!("block {block} of {rel} has {} bytes", page.len())))?;
        if checksums {
            set_data_checksum(&mut page, block);
        }
        bytes.extend_from_slice(&page);
    }
    Ok(bytes.freeze())
}
