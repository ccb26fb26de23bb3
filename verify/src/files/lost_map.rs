//! Maps whose content was lost in the WAL.
//!
//! `CREATE DATABASE` by WAL (version 15 and later) logs pages of all forks as "standard"
//! (`RelationCopyStorageUsingBuffer`), so images omit the bytes between `pd_lower` and `pd_upper`. Two kinds of pages
//! keep their content there: visibility maps, and the maps from ranges to tuples of BRIN indexes. Replay, including a
//! standby's, turns them into empty maps, which is safe but not what the primary has: pages count as not all visible,
//! ranges as not summarized. Such a page differs from the primary's by the missing content until it is recreated.
//! `CREATE DATABASE` by file copy of such a database propagates this. Where the history that would show how a map was
//! emptied has been removed, it may lack content without that proof, and is told apart.

use std::ops::Range;

use pageserver_api::key::Key;
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::{MAIN_FORK, VM_FORK};
use pageserver_api::value::Value;
use pgdata::listing::Listing;
use pgdata::{PageHistory, PageStore};
use postgres_formats::page::{PAGE_HEADER_SIZE, PageBytes, PageMut, PageRef};
use postgres_formats::record::peek;
use redo::mask::PageKind;
use utils::lsn::Lsn;

use super::compare::Verdict;
use super::history::page_at;

/// Maximum number of changes of a page to follow back.
const MAX_CHANGES: usize = 100_000;
/// Size of an entry of a range map: the location of the range's tuple.
const RANGE_ENTRY: usize = 6;

/// A kind of map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Map {
    /// Two bits for each page of a table.
    Visibility,
    /// An entry for each range of pages of a table.
    Ranges,
}

impl Map {
    /// The kind of map that the page belongs to, if any.
    pub(crate) fn of(fork: u8, page: &PageBytes) -> Option<Self> {
        const REVMAP: [u8; 2] = 0xF092u16.to_le_bytes();
        let is_revmap = || PageKind::guess(fork, page) == PageKind::Brin && page.ends_with(&REVMAP);
        match fork {
            VM_FORK => Some(Self::Visibility),
            MAIN_FORK if is_revmap() => Some(Self::Ranges),
            _ => None,
        }
    }

    /// The bytes of the page that hold content.
    fn content(self) -> Range<usize> {
        match self {
            Self::Visibility => PAGE_HEADER_SIZE..8192,
            Self::Ranges => PAGE_HEADER_SIZE..8184,
        }
    }

    /// Whether the page has no content.
    pub(crate) fn is_empty(self, page: &PageBytes) -> bool {
        page.get(self.content()).is_some_and(|content| content.iter().all(|byte| *byte == 0))
    }

    /// Whether `ours` equals `theirs` except for its LSN and missing content.
    pub(crate) fn lacks_content_only(self, ours: &PageBytes, theirs: &PageBytes) -> bool {
        let (mut rest, mut their_rest) = (*ours, *theirs);
        for page in [&mut rest, &mut their_rest] {
            PageMut::new(page).set_lsn(0);
            PageMut::new(page).set_checksum(0);
            page.get_mut(self.content()).into_iter().for_each(|content| content.fill(0));
        }
        let (Some(ours), Some(theirs)) = (ours.get(self.content()), theirs.get(self.content())) else { return false };
        let lacks_only = match self {
            Self::Visibility => ours.iter().zip(theirs).all(|(ours, theirs)| ours & !theirs == 0),
            Self::Ranges => ours
                .chunks(RANGE_ENTRY)
                .zip(theirs.chunks(RANGE_ENTRY))
                .all(|(ours, theirs)| ours == theirs || ours.iter().all(|byte| *byte == 0)),
        };
        lacks_only && rest == their_rest
    }
}

/// Explains why page `ours` of a map lacks content of `theirs`, if it has no other content, and was emptied by an
/// image; `None` if there is no known reason.
pub(super) async fn explain<S: PageHistory>(
    store: &S,
    key: Key,
    fork: u8,
    ours: &[u8],
    theirs: &PageBytes,
) -> anyhow::Result<Option<Verdict>> {
    let (mut key, mut page) = (key, PageBytes::try_from(ours)?);
    let Some(map) = Map::of(fork, theirs).filter(|map| map.lacks_content_only(&page, theirs)) else {
        return Ok(None);
    };
    for _ in 0..MAX_CHANGES {
        let changed = Lsn(PageRef::new(&page).lsn());
        if !changed.is_valid() {
            return Ok(None);
        }
        if changed <= store.removed_below() {
            return Ok(Some(Verdict::Forgotten));
        }
        let Some((origin, after)) = page_of_lsn(store, key, changed).await? else { return Ok(None) };
        if map.is_empty(&after) && is_image(store, origin, changed).await? {
            return Ok(Some(Verdict::LostInWal));
        }
        key = origin;
        let Some(before) = page_at(store, key, Lsn(changed.0 - 1)).await? else { return Ok(None) };
        page = before;
    }
    Ok(None)
}

/// Whether the page got its LSN from a record that is an image of it. Images with all bytes are not stored as
/// records.
async fn is_image<S: PageHistory>(store: &S, key: Key, lsn: Lsn) -> anyhow::Result<bool> {
    Ok(match store.newest_version(key, lsn).await? {
        Some((at, Value::WalRecord(WalRecord::Postgres { record, .. }))) if at == lsn => {
            peek(&record).is_some_and(|header| header.is_images())
        }
        _ => false,
    })
}

/// The page that got LSN `lsn`, as of then: that of `key`, or if that was later copied from another database, the
/// page there.
async fn page_of_lsn<S: PageStore>(store: &S, key: Key, lsn: Lsn) -> anyhow::Result<Option<(Key, PageBytes)>> {
    let mut candidates = vec![key];
    // Nothing can be read before the history begins.
    if let Ok(databases) = Listing::new(store, lsn).databases().await {
        candidates.extend(databases.into_keys().map(|(spc, db)| Key { field2: spc, field3: db, ..key }));
    }
    for candidate in candidates {
        let page = page_at(store, candidate, lsn).await?;
        if let Some(page) = page.filter(|page| PageRef::new(page).lsn() == lsn.0) {
            return Ok(Some((candidate, page)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests;
