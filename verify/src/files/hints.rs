//! Pages whose LSN is that of another hint.
//!
//! With checksums or `wal_log_hints` the first hint on a page after a checkpoint is logged: as an image of the page
//! or, while `full_page_writes` is off (version 15 and later), as a record without one. The page gets the record's
//! LSN only if the hint makes it dirty (`MarkBufferDirtyHint`). So two things differ from replay, including a
//! standby's:
//!
//! * Replay gives a page the LSN of each image. On the server the page may already have been dirty, from before the
//!   checkpoint or because another session set a hint at the same time: then it keeps the older LSN.
//! * Replay does nothing for a record without an image. On the server the page may have its LSN.
//!
//! A server's page may therefore have the LSN of its last change other than a hint, or that of any hint record since;
//! its content is the same except for hints. This is what is allowed here, after checking the records.
//!
//! Compaction may have replaced a record by the page as it was after it. A page that has an older LSN than its version
//! took the place of a record that left it as it was: that of a hint without an image.
//!
//! Where the history that would show it has been removed, an older LSN is still allowed if it is from that time.

use pageserver_api::key::Key;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use pgdata::PageHistory;
use postgres_formats::page::{PageBytes, PageMut, PageRef};
use postgres_formats::record::peek;
use utils::lsn::Lsn;

use super::compare::{Verdict, relation_page};
use super::history::page_at;

/// Maximum number of consecutive hint records to follow back.
const MAX_HINTS: usize = 10_000;

/// Whether `ours` equals the server's page `theirs` except for its LSN.
pub(crate) fn differs_by_lsn_only(fork: u8, ours: &PageBytes, theirs: &PageBytes) -> bool {
    let lsn = PageRef::new(theirs).lsn();
    let mut ours = *ours;
    PageMut::new(&mut ours).set_lsn(lsn);
    lsn != 0 && relation_page(fork, Some(&ours), theirs) == Verdict::Equal
}

/// Explains why the LSN of the server's page `theirs` differs from that of `ours`, the stored page as of `lsn`;
/// `None` if there is no known reason.
pub(super) async fn explain<S: PageHistory>(
    store: &S,
    key: Key,
    fork: u8,
    lsn: Lsn,
    ours: &[u8],
    theirs: &PageBytes,
) -> anyhow::Result<Option<Verdict>> {
    let ours = PageBytes::try_from(ours)?;
    let (wanted, have) = (Lsn(PageRef::new(theirs).lsn()), Lsn(PageRef::new(&ours).lsn()));
    if wanted == have || !differs_by_lsn_only(fork, &ours, theirs) {
        return Ok(None);
    }
    let verdict = if wanted < have { Verdict::OlderHint } else { Verdict::NewerHint };
    let removed = store.removed_below();
    let forgotten = (wanted < have.min(removed)).then_some(Verdict::Forgotten);
    let mut at = lsn;
    for _ in 0..MAX_HINTS {
        let Some((changed, value)) = store.newest_version(key, at).await? else { return Ok(None) };
        if !is_only_a_hint(store, key, fork, changed, &value).await? {
            // There is no other version in between, and below what was removed nothing can be read.
            let then = page_at(store, key, at).await?;
            let has_it = then.is_some_and(|page| PageRef::new(&page).lsn() == wanted.0);
            return Ok(if has_it { Some(verdict) } else { forgotten.filter(|_| changed <= removed) });
        }
        if changed == wanted {
            return Ok(Some(verdict));
        }
        at = Lsn(changed.0 - 1);
        if at < removed {
            return Ok(forgotten);
        }
    }
    Ok(None)
}

/// Whether a version was created by a hint record. Of one whose image holds all bytes of the page, and where compaction
/// has replaced the record, only the page is stored: then it must equal the page before it.
async fn is_only_a_hint<S: PageHistory>(
    store: &S,
    key: Key,
    fork: u8,
    changed: Lsn,
    value: &Value,
) -> anyhow::Result<bool> {
    let image = match value {
        Value::WalRecord(WalRecord::Postgres { record, .. }) => {
            return Ok(peek(record).is_some_and(|header| header.is_hint()));
        }
        Value::WalRecord(_) => return Ok(false),
        Value::Image(image) => PageBytes::try_from(&image[..])?,
    };
    // Nothing can be read before the history begins, so an imported page has none before it.
    let Ok(Some(before)) = page_at(store, key, Lsn(changed.0 - 1)).await else { return Ok(false) };
    let has_its_lsn = PageRef::new(&image).lsn() == changed.0;
    Ok(if has_its_lsn { differs_by_lsn_only(fork, &before, &image) } else { before == image })
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

    /// The effect of a record at an LSN.
    #[allow(clippy::large_enum_variant, reason = "a handful of them in a test")]
    enum Record {
        /// Changed the page, or was the image of a hint.
        Image(PageBytes),
        /// A hint record without an image.
        Hint(u64),
        /// The page as of an LSN, which compaction has stored instead of the record there.
        Embedded(u64, PageBytes),
        /// Some other record that left the page unchanged.
        Other(u64),
    }
    use Record::{Embedded, Hint, Image, Other};

    fn explained(history: &[Record], theirs: &PageBytes) -> Option<Verdict> {
        explained_above(0, history, theirs)
    }

    /// The same where history below an LSN has been removed.
    fn explained_above(cutoff: u64, history: &[Record], theirs: &PageBytes) -> Option<Verdict> {
        let key = rel_block_key(RelTag { spcnode: 1663, dbnode: 5, relnode: 1249, forknum: 0 }, 64);
        let mut images = Images::default();
        for record in history {
            match record {
                Image(page) => images.add(key, PageRef::new(page).lsn(), *page, None),
                Embedded(lsn, page) => images.add(key, *lsn, *page, None),
                Hint(lsn) => images.add(key, *lsn, images.newest(key), Some((0, 0xA0))),
                Other(lsn) => images.add(key, *lsn, images.newest(key), Some((10, 0x40))),
            }
        }
        let ours = images.newest(key);
        images.cutoff = Lsn(cutoff);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(explain(&images, key, 0, Lsn(1000), &ours, theirs)).unwrap()
    }

    #[test]
    fn only_an_older_lsn_of_the_same_page_is_explained() {
        let same = || [Image(page(80, 1)), Image(page(160, 1))];
        assert_eq!(explained(&same(), &page(80, 1)), Some(Verdict::OlderHint));
        assert_eq!(
            explained(&[Image(page(80, 2)), Image(page(160, 1))], &page(80, 1)),
            None,
            "it was another page then"
        );
        assert_eq!(explained(&same(), &page(88, 1)), None, "no record of that LSN");
        assert_eq!(explained(&[Image(page(80, 1)), Image(page(160, 2))], &page(80, 1)), None, "the newer changed it");
        assert_eq!(explained(&same(), &page(240, 1)), None, "a record is missing here");
        assert_eq!(explained(&same(), &page(160, 2)), None, "the content differs");
    }

    #[test]
    fn an_older_lsn_from_before_the_history_is_told_apart() {
        let history = || [Image(page(80, 1)), Image(page(160, 1)), Hint(240)];
        assert_eq!(explained_above(80, &history(), &page(80, 1)), Some(Verdict::OlderHint), "still there");
        for cutoff in [160, 200, 240, 300] {
            assert_eq!(explained_above(cutoff, &history(), &page(80, 1)), Some(Verdict::Forgotten), "{cutoff}");
            assert_eq!(explained_above(cutoff, &history(), &page(80, 2)), None, "the content differs");
            assert_eq!(explained_above(cutoff, &history(), &page(248, 1)), None, "a record is missing here");
        }
        assert_eq!(explained_above(120, &history(), &page(130, 1)), None, "no record of that LSN");
        let changed = [Image(page(80, 1)), Image(page(160, 2))];
        assert_eq!(explained_above(120, &changed, &page(80, 2)), None, "a change since");
    }

    #[test]
    fn only_the_lsn_of_a_hint_without_image_is_explained() {
        let history = || [Image(page(80, 1)), Hint(160), Hint(240)];
        for lsn in [160, 240] {
            assert_eq!(explained(&history(), &page(lsn, 1)), Some(Verdict::NewerHint));
        }
        assert_eq!(explained(&history(), &page(200, 1)), None, "no record of that LSN");
        assert_eq!(explained(&history(), &page(160, 2)), None, "the content differs");
        assert_eq!(explained(&[Image(page(80, 1)), Other(160)], &page(160, 1)), None, "it was no hint");
        let changed_since = [Image(page(80, 1)), Hint(160), Image(page(240, 2)), Hint(320)];
        assert_eq!(explained(&changed_since, &page(160, 2)), None, "a hint from before the last change");
        assert_eq!(explained(&changed_since, &page(320, 2)), Some(Verdict::NewerHint));
    }

    #[test]
    fn hints_with_and_without_images_mix() {
        let history = || [Image(page(80, 1)), Hint(160), Image(page(240, 1)), Hint(320)];
        assert_eq!(explained(&history(), &page(80, 1)), Some(Verdict::OlderHint));
        assert_eq!(explained(&history(), &page(160, 1)), Some(Verdict::OlderHint));
        assert_eq!(explained(&history(), &page(320, 1)), Some(Verdict::NewerHint));
        assert_eq!(explained(&history(), &page(400, 1)), None);
    }

    #[test]
    fn a_record_that_compaction_has_replaced_by_the_page_is_still_that_of_a_hint() {
        let history = || [Image(page(80, 1)), Embedded(160, page(80, 1)), Hint(240), Embedded(320, page(80, 1))];
        for lsn in [160, 240, 320] {
            assert_eq!(explained(&history(), &page(lsn, 1)), Some(Verdict::NewerHint), "{lsn}");
        }
        assert_eq!(explained(&history(), &page(200, 1)), None, "no record of that LSN");
        assert_eq!(explained(&history(), &page(160, 2)), None, "the content differs");
        let changed_since = [Embedded(160, page(80, 1)), Image(page(240, 2)), Embedded(320, page(240, 2))];
        assert_eq!(explained(&changed_since, &page(160, 2)), None, "a hint from before the last change");
        let changed = [Image(page(80, 1)), Embedded(160, page(80, 2)), Hint(240)];
        assert_eq!(explained(&changed, &page(160, 2)), None, "the record was none of a hint");
    }
}
