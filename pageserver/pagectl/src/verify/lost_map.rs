//! Visibility maps whose bits were lost in the WAL.
//!
//! `CREATE DATABASE` by WAL (15 and later) logs pages of all forks as "standard" (`RelationCopyStorageUsingBuffer`), so
//! images leave out what is between `pd_lower` and `pd_upper`: of a map page, everything. Replay, a standby's too,
//! makes empty maps of them, which is safe but not what the primary has. Such a page differs from the primary's by
//! bits that are missing until the next VACUUM. `CREATE DATABASE` by file copy of such a database passes that on.

use pageserver::pgdata::PageStore;
use pageserver::pgdata::listing::Listing;
use pageserver_api::key::Key;
use postgres_formats::page::{PAGE_HEADER_SIZE, PageBytes, PageRef};
use utils::lsn::Lsn;

use super::page_at;

/// Most changes of a page that are followed back.
const MAX_CHANGES: usize = 100_000;

/// Whether map page `ours` lacks bits of `theirs`, has no others, and was empty after some record that set its LSN. A
/// record that sets bits leaves some, so that one was such an image.
pub(super) async fn explains<S: PageStore>(
    store: &S,
    key: Key,
    ours: &[u8],
    theirs: &PageBytes,
) -> anyhow::Result<bool> {
    let only_missing = |ours: &[u8]| ours.iter().zip(theirs).skip(PAGE_HEADER_SIZE).all(|(o, t)| o & !t == 0);
    let same_header = ours.get(10..PAGE_HEADER_SIZE) == theirs.get(10..PAGE_HEADER_SIZE);
    if !same_header || !only_missing(ours) {
        return Ok(false);
    }
    let (mut key, mut page) = (key, PageBytes::try_from(ours)?);
    for _ in 0..MAX_CHANGES {
        let changed = Lsn(PageRef::new(&page).lsn());
        if !changed.is_valid() {
            return Ok(false);
        }
        let Some((origin, after)) = page_of_lsn(store, key, changed).await? else { return Ok(false) };
        if is_empty_map(&after) {
            return Ok(true);
        }
        key = origin;
        let Some(before) = page_at(store, key, Lsn(changed.0 - 1)).await? else { return Ok(false) };
        page = before;
    }
    Ok(false)
}

/// The page that got LSN `lsn`, as of then: that of `key`, or if that was copied from another database later, the page
/// there.
async fn page_of_lsn<S: PageStore>(store: &S, key: Key, lsn: Lsn) -> anyhow::Result<Option<(Key, PageBytes)>> {
    let mut candidates = vec![key];
    // Before history begins there is nothing to be found.
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

fn is_empty_map(page: &PageBytes) -> bool {
    page.iter().skip(PAGE_HEADER_SIZE).all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests;
