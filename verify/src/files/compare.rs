//! Decides whether a stored page is the server's, apart from what the server does not log.

use pageserver_api::reltag::INIT_FORK;
use postgres_formats::BLCKSZ;
use postgres_formats::page::{PAGE_HEADER_SIZE, PageBytes, PageMut, PageRef};
use postgres_formats::replorigin::DO_NOT_REPLICATE;
use redo::mask::{PageKind, mask_for_files};

use super::sequence;

/// The outcome of one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The pages are equal.
    Equal,
    /// The pages differ; the first byte that differs after masking.
    Different(usize),
    /// The page exists only in the timeline.
    OnlyStored,
    /// The page exists only in the file, although the WAL must have logged it.
    OnlyInFile,
    /// The WAL does not determine the page.
    Unlogged,
    /// A map lacks content that is not in the WAL.
    LostInWal,
    /// Equal except for the LSN, which is older than that of the last logged hint.
    OlderHint,
    /// Equal except for the LSN, which is that of a hint record without an image.
    NewerHint,
    /// Differs as pages do that were not logged in full, but the history that would show it has been removed.
    Forgotten,
    /// Commit timestamps, some of which were logged with a different time.
    UnloggedTime,
}

/// Compares a page of a relation; `ours` is absent beyond the end of the stored fork.
pub(crate) fn relation_page(fork: u8, ours: Option<&[u8]>, theirs: &PageBytes) -> Verdict {
    let never_logged = is_never_logged(theirs) || is_empty_bloom(fork, theirs);
    let Some(ours) = ours else {
        return if never_logged { Verdict::Equal } else { Verdict::OnlyInFile };
    };
    let Ok(mut ours) = PageBytes::try_from(ours) else { return Verdict::Different(0) };
    if never_logged && PageRef::new(&ours).is_new() && ours.iter().all(|byte| *byte == 0) {
        return Verdict::Equal;
    }
    let mut theirs = *theirs;
    let kind = PageKind::guess(fork, &theirs);
    mask_for_files(kind, &mut ours);
    mask_for_files(kind, &mut theirs);
    if kind == PageKind::Sequence {
        sequence::reconcile(&mut ours, &theirs);
    }
    if is_written_before_logged(fork, kind, PageRef::new(&theirs).lsn()) {
        PageMut::new(&mut ours).set_lsn(PageRef::new(&theirs).lsn());
    }
    first_difference(&ours, &theirs)
}

/// Whether the server wrote the page before it logged it, so that the page in the file lacks the record's LSN: up to
/// version 15 an empty index's pages in its init fork (`btbuildempty`, `spgbuildempty`, `blbuildempty`), and pages of
/// a GiST index built by sorting, which have `GistBuildLSN`.
fn is_written_before_logged(fork: u8, kind: PageKind, lsn: u64) -> bool {
    const GIST_BUILD_LSN: u64 = 1;
    (fork == INIT_FORK && lsn == 0) || (kind == PageKind::Gist && lsn == GIST_BUILD_LSN)
}

/// Whether the page is the only one of an empty bloom index, in the init fork of an unlogged table. Since version 16
/// `blbuildempty` writes it as part of the main fork, which is not logged for an unlogged table: a standby lacks it,
/// too.
fn is_empty_bloom(fork: u8, page: &PageBytes) -> bool {
    const BLOOM_PAGE_ID: [u8; 2] = 0xFF83u16.to_le_bytes();
    fork == INIT_FORK && PageRef::new(page).lsn() == 0 && page.ends_with(&BLOOM_PAGE_ID)
}

/// Compares a page of an SLRU. The server starts some pages without a record (`ActivateCommitTs`); these are zeros.
/// `has_times` is set for pages of commit timestamps.
pub(crate) fn slru_page(has_times: bool, ours: Option<&[u8]>, theirs: &PageBytes) -> Verdict {
    match ours {
        Some(ours) => match PageBytes::try_from(ours) {
            Ok(ours) if has_times => commit_times(&ours, theirs),
            Ok(ours) => first_difference(&ours, theirs),
            Err(_) => Verdict::Different(0),
        },
        None if theirs.iter().all(|byte| *byte == 0) => Verdict::Equal,
        None => Verdict::OnlyInFile,
    }
}

/// Compares commit timestamps: each entry has a time and a replication origin. A session that replicates logs the
/// time that it received from the origin. If it received none, it logs zero, and the server stores its own time
/// (`RecordTransactionCommit`). If it marks its changes as not to be replicated, it logs the time of its previous
/// commit.
fn commit_times(ours: &PageBytes, theirs: &PageBytes) -> Verdict {
    const ENTRY: usize = 10;
    let (mut ours, mut is_unlogged) = (*ours, false);
    for (own, their) in ours.chunks_exact_mut(ENTRY).zip(theirs.chunks_exact(ENTRY)) {
        let (time, at, origin) = (commit_time(own), commit_time(their), own.get(8..));
        let is_replicated = origin != Some(&[0, 0]) && origin == their.get(8..);
        let is_unmarked = origin == Some(&DO_NOT_REPLICATE.to_le_bytes()) && time < at;
        if own != their && is_replicated && ((time == 0 && at > 0) || is_unmarked) {
            own.copy_from_slice(their);
            is_unlogged = true;
        }
    }
    match first_difference(&ours, theirs) {
        Verdict::Equal if is_unlogged => Verdict::UnloggedTime,
        verdict => verdict,
    }
}

fn commit_time(entry: &[u8]) -> i64 {
    entry.first_chunk().map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

/// Whether the server has extended the file by this page without using it yet. That is not logged: the page is
/// zeroed, or has an empty header without an LSN (`RelationAddExtraBlocks`, `vm_extend`), and its first user logs it
/// as new.
fn is_never_logged(page: &PageBytes) -> bool {
    let header = PageRef::new(page);
    let zeros = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
    if header.is_new() {
        return zeros(page);
    }
    let empty = usize::from(header.lower()) == PAGE_HEADER_SIZE
        && usize::from(header.upper()) == BLCKSZ
        && usize::from(header.special()) == BLCKSZ;
    header.lsn() == 0 && empty && header.flags() == 0 && page.get(PAGE_HEADER_SIZE..).is_some_and(zeros)
}

fn first_difference(ours: &PageBytes, theirs: &PageBytes) -> Verdict {
    match ours.iter().zip(theirs).position(|(ours, theirs)| ours != theirs) {
        None => Verdict::Equal,
        Some(at) => Verdict::Different(at),
    }
}

#[cfg(test)]
mod tests {
    use postgres_formats::page::Page;

    use super::*;

    const ZEROS: PageBytes = [0; BLCKSZ];

    fn empty_page(lsn: u64) -> PageBytes {
        let mut page = Page::new(ZEROS);
        page.init(0);
        page.set_lsn(lsn);
        page.set_checksum(77);
        page.into_inner()
    }

    #[test]
    fn pages_that_were_never_logged_may_be_missing() {
        for page in [ZEROS, empty_page(0)] {
            assert_eq!(relation_page(0, None, &page), Verdict::Equal);
            assert_eq!(relation_page(0, Some(&ZEROS), &page), Verdict::Equal);
        }
        assert_eq!(relation_page(0, None, &empty_page(8)), Verdict::OnlyInFile);
        assert_eq!(relation_page(0, Some(&ZEROS), &empty_page(8)), Verdict::Different(4));
        let mut used = empty_page(0);
        used[8000] = 1;
        assert_eq!(relation_page(0, None, &used), Verdict::OnlyInFile);
        assert_eq!(relation_page(0, Some(&empty_page(0)), &ZEROS), Verdict::Different(12));
    }

    #[test]
    fn an_empty_bloom_index_of_an_unlogged_table_may_be_missing() {
        let mut bloom = empty_page(0);
        bloom[8190..].copy_from_slice(&[0x83, 0xFF]);
        assert_eq!(relation_page(INIT_FORK, None, &bloom), Verdict::Equal);
        assert_eq!(relation_page(0, None, &bloom), Verdict::OnlyInFile, "that of a logged table is logged");
        bloom[0] = 1;
        assert_eq!(relation_page(INIT_FORK, None, &bloom), Verdict::OnlyInFile, "up to 15 it is logged");
    }

    #[test]
    fn every_logged_byte_counts() {
        let mut ours = empty_page(8);
        let theirs = empty_page(8);
        assert_eq!(relation_page(0, Some(&ours), &theirs), Verdict::Equal);
        ours[9] = 1;
        assert_eq!(relation_page(0, Some(&ours), &theirs), Verdict::Equal, "the checksum is not logged");
        ours[4] = 9;
        assert_eq!(relation_page(0, Some(&ours), &theirs), Verdict::Different(4), "the LSN is");
        let mut map = empty_page(8);
        map[100] = 3;
        assert_eq!(relation_page(2, Some(&map), &theirs), Verdict::Different(100));
        let mut status = ZEROS;
        status[5] = 1;
        for has_times in [false, true] {
            assert_eq!(slru_page(has_times, Some(&status), &ZEROS), Verdict::Different(5));
            assert_eq!(slru_page(has_times, None, &status), Verdict::OnlyInFile);
            assert_eq!(slru_page(has_times, None, &ZEROS), Verdict::Equal);
        }
    }

    /// The second entry of a page.
    fn commit(time: i64, origin: u16) -> PageBytes {
        let mut page = ZEROS;
        page[10..18].copy_from_slice(&time.to_le_bytes());
        page[18..20].copy_from_slice(&origin.to_le_bytes());
        page
    }

    #[test]
    fn only_times_that_a_replicating_session_was_not_told_may_differ() {
        let compared = |ours: PageBytes, theirs: PageBytes| slru_page(true, Some(&ours), &theirs);
        assert_eq!(compared(commit(0, 3), commit(700, 3)), Verdict::UnloggedTime);
        assert_eq!(compared(commit(600, u16::MAX), commit(700, u16::MAX)), Verdict::UnloggedTime);
        for (ours, theirs, at) in [
            (commit(0, 0), commit(700, 0), 10),
            (commit(600, 3), commit(700, 3), 10),
            (commit(0, 3), commit(700, 4), 10),
            (commit(0, 3), commit(-1, 3), 10),
            (commit(700, 3), commit(700, 4), 18),
            (commit(800, u16::MAX), commit(700, u16::MAX), 10),
        ] {
            assert_eq!(compared(ours, theirs), Verdict::Different(at));
        }
        assert_eq!(slru_page(false, Some(&commit(0, 3)), &commit(700, 3)), Verdict::Different(10));
    }
}
