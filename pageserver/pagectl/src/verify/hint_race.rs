//! Pages whose newest image of a hint is not in their LSN.
//!
//! With checksums or `wal_log_hints` the first hint on a page after a checkpoint is logged as an image of the page. Two
//! sessions that set hints on a page at the same time log an image each; only the one that makes the page dirty sets
//! its LSN (`MarkBufferDirtyHint`), and that may be the older image's. Replay, a standby's too, ends with the newer.

use pageserver::pgdata::PageStore;
use pageserver_api::key::Key;
use postgres_formats::page::{PageBytes, PageMut, PageRef};
use utils::lsn::Lsn;

use super::compare::{Verdict, relation_page};
use super::page_at;

/// `ours` with an older LSN, if then it is the server's page `theirs`.
pub(crate) fn is_newer_by_lsn_only(fork: u8, ours: &PageBytes, theirs: &PageBytes) -> bool {
    let lsn = PageRef::new(theirs).lsn();
    let mut ours = *ours;
    let is_newer = PageRef::new(&ours).lsn() > lsn;
    PageMut::new(&mut ours).set_lsn(lsn);
    is_newer && lsn != 0 && relation_page(fork, Some(&ours), theirs) == Verdict::Equal
}

/// Whether `ours` became the server's page at an older LSN, that of the server's page, and nothing that is logged has
/// changed on it since.
pub(super) async fn explains<S: PageStore>(
    store: &S,
    key: Key,
    fork: u8,
    ours: &[u8],
    theirs: &PageBytes,
) -> anyhow::Result<bool> {
    if !is_newer_by_lsn_only(fork, &PageBytes::try_from(ours)?, theirs) {
        return Ok(false);
    }
    // Before history begins there is nothing to be found.
    let Ok(then) = page_at(store, key, Lsn(PageRef::new(theirs).lsn())).await else { return Ok(false) };
    Ok(then.is_some_and(|page| relation_page(fork, Some(&page), theirs) == Verdict::Equal))
}

#[cfg(test)]
mod tests {
    use super::super::images::Images;
    use super::*;
    use pageserver_api::key::rel_block_key;
    use pageserver_api::reltag::RelTag;
    use postgres_formats::page::Page;

    /// An empty heap page with a byte of content.
    fn page(lsn: u64, content: u8) -> PageBytes {
        let mut page = Page::new([0; 8192]);
        page.init(0);
        page.set_lsn(lsn);
        let mut bytes = page.into_inner();
        bytes[12..14].copy_from_slice(&28u16.to_le_bytes());
        bytes[24] = content;
        bytes
    }

    fn explained(history: &[PageBytes], theirs: &PageBytes) -> bool {
        let key = rel_block_key(RelTag { spcnode: 1663, dbnode: 5, relnode: 1249, forknum: 0 }, 64);
        let images = Images::of(key, history);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(explains(&images, key, 0, history.last().unwrap(), theirs)).unwrap()
    }

    #[test]
    fn only_an_older_lsn_of_the_same_page_is_explained() {
        assert!(explained(&[page(80, 1), page(160, 1)], &page(80, 1)));
        assert!(!explained(&[page(80, 2), page(160, 1)], &page(80, 1)), "it was another page then");
        assert!(!explained(&[page(80, 1), page(160, 1)], &page(88, 1)), "no record of that LSN");
        assert!(!explained(&[page(80, 1), page(160, 2)], &page(80, 1)), "the newer record changed it");
        assert!(!explained(&[page(80, 1), page(160, 1)], &page(240, 1)), "a record is missing here");
    }
}
