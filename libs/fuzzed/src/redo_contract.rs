//! The redo contract, for any record and any page: no panic, a failed apply leaves the page unchanged, and applying
//! is deterministic.

use postgres_formats::page::PageBytes;
use postgres_formats::record::DecodedRecord;
use postgres_formats::rmgr::RmgrId;
use redo::mask::{PageKind, mask_for_files, mask_page};
use redo::{Applied, Chain, RedoContext, RedoError, apply_record};

use crate::case::Case;

/// End LSN of all records.
const END: u64 = 0x0FFF_FFFF_0000_2000;

/// Parses `input` as a page and a record of `rmgr`, and applies the record to the page.
pub(crate) fn keeps_the_contract(rmgr: RmgrId, input: &[u8]) {
    let Some(case) = Case::read(input) else { return };
    let page = case.page();
    case.with_record(rmgr, |ctx, record, id| {
        let after = apply_twice(ctx, record, id, &page);
        check_chain(ctx, record, id, &page, &after);
        check_masks(record, id, &after);
        // Applies the record again, to the page that it produced.
        let mut last = after.clone();
        let applied = apply_record(ctx, &mut last, record, id, END + 8);
        assert!(matches!(applied, Ok(Applied::Changed)) || last == after, "the page changed: {applied:?}");
    });
}

fn apply_twice(ctx: &RedoContext, record: &DecodedRecord<'_>, id: u8, before: &PageBytes) -> Box<PageBytes> {
    let (mut page, mut again) = (Box::new(*before), Box::new(*before));
    let applied = apply_record(ctx, &mut page, record, id, END);
    let applied_again = apply_record(ctx, &mut again, record, id, END);
    assert_eq!(describe(&applied), describe(&applied_again));
    assert!(page == again, "the second time gave another page");
    assert!(matches!(applied, Ok(Applied::Changed)) || *page == *before, "the page changed: {applied:?}");
    page
}

fn check_chain(ctx: &RedoContext, record: &DecodedRecord<'_>, id: u8, before: &PageBytes, after: &PageBytes) {
    match Chain::new(Box::new(*before)).apply(ctx, record, id, END) {
        Ok((chain, _)) => assert!(*chain.into_page() == *after, "a chain gave another page"),
        Err(_) => assert!(before == after, "a chain failed where a single record did not"),
    }
}

/// Masking is total.
fn check_masks(record: &DecodedRecord<'_>, id: u8, page: &PageBytes) {
    let Some(block) = record.block(id) else { return };
    let mut masked = *page;
    mask_page(record.header.rmid, block.blkno, &mut masked);
    let kind = PageKind::guess(block.fork, page);
    let mut for_files = *page;
    mask_for_files(kind, &mut for_files);
}

fn describe(applied: &Result<Applied, RedoError>) -> String {
    match applied {
        Ok(applied) => format!("{applied:?}"),
        Err(error) => error.to_string(),
    }
}
