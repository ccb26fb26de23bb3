use postgres_formats::page::PageMut;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;

use super::*;
use crate::Chain;
use crate::testing::{END, Sample, page_with};

const CONFIRM: u8 = 0x50;

fn with_tuple() -> Box<[u8; 8192]> {
    page_with(0, &[&[7; 32]])
}

fn confirm() -> Sample<'static> {
    Sample::new(RmgrId::HEAP, CONFIRM, &[1, 0]).block(0, 9, &[])
}

#[test]
fn the_page_lsn_decides() {
    for (lsn, applied) in [(END - 1, Applied::Changed), (END, Applied::SkippedByLsn), (END + 1, Applied::SkippedByLsn)]
    {
        let mut page = with_tuple();
        PageMut::new(&mut *page).set_lsn(lsn);
        let before = page.clone();
        assert_eq!(confirm().apply(0, &mut page).unwrap(), applied);
        assert_eq!(page == before, applied == Applied::SkippedByLsn);
    }
}

#[test]
fn a_new_page_is_left_alone() {
    let mut page = [0; 8192];
    assert_eq!(confirm().apply(0, &mut page).unwrap(), Applied::SkippedNew);
    assert_eq!(page, [0; 8192]);
}

#[test]
fn an_image_replaces_any_page_and_sets_the_lsn() {
    let image = with_tuple();
    let mut page = [0xAA; 8192];
    confirm().image(&image, true).changes(0, &mut page);
    assert_eq!(page[8..], image[8..]);
}

#[test]
fn an_all_zero_image_gets_no_lsn() {
    let mut page = [0xAA; 8192];
    let record = Sample::new(RmgrId::XLOG, XLOG_FPI, &[]).block(0, 0, &[]).image(&[0; 8192], true);
    assert_eq!(record.apply(0, &mut page).unwrap(), Applied::Changed);
    assert_eq!(page, [0; 8192]);
}

#[test]
fn a_check_image_is_not_applied() {
    let mut page = with_tuple();
    confirm().image(&[1; 8192], false).changes(0, &mut page);
    assert_eq!(PageMut::new(&mut *page).item(1).unwrap()[12..18], [0, 0, 9, 0, 1, 0]);
}

#[test]
fn full_page_image_records_without_image() {
    let hint = Sample::new(RmgrId::XLOG, XLOG_FPI_FOR_HINT, &[]).block(0, 0, &[]);
    assert_eq!(hint.apply(0, &mut with_tuple()).unwrap(), Applied::Unchanged);
    let error = Sample::new(RmgrId::XLOG, XLOG_FPI, &[]).block(0, 0, &[]).apply(0, &mut with_tuple()).unwrap_err();
    assert!(matches!(error, RedoError::Failed { fault: Fault::Inconsistent(_), .. }));
}

#[test]
fn errors_name_record_block_and_lsn() {
    let record = Sample::new(RmgrId::HEAP, CONFIRM, &[2, 0]).block(0, 9, &[]);
    assert_eq!(
        record.apply(0, &mut with_tuple()).unwrap_err().to_string(),
        "redo of Heap/HEAP_CONFIRM (info 0x50) ending at 1/2000, block reference 0: rel 1663/5/16384 fork 0 block 9: \
         no line pointer 2: the page has 1"
    );
    assert!(matches!(record.apply(1, &mut with_tuple()), Err(RedoError::NoSuchBlock(_))));
    let custom = Sample::new(RmgrId(200), 0, &[]).block(0, 9, &[]);
    let error = custom.apply(0, &mut with_tuple()).unwrap_err();
    assert!(matches!(error, RedoError::Unsupported { rmgr: "custom", .. }), "{error}");
    assert!(error.to_string().contains("of resource manager 200 "), "{error}");
    // Its pages can still be served while the records carry images.
    let image = with_tuple();
    let mut page = Box::new([0; 8192]);
    Sample::new(RmgrId(200), 0, &[]).block(0, 9, &[]).image(&image, true).changes(0, &mut page);
    assert_eq!(page[8..], image[8..]);
}

#[test]
fn a_missing_visibility_map_page_is_made_by_visible_only() {
    let main = [0, 0, 0, 0, 3];
    let visible = Sample::new(RmgrId::HEAP2, 0x40, &main).vm(0, 0).block(1, 5, &[]);
    let mut page = [0; 8192];
    visible.changes(0, &mut page);
    assert_eq!((page[25], PageMut::new(&mut page).special()), (0b1100, 8192));
    assert_eq!(visible.apply(1, &mut [0; 8192]).unwrap(), Applied::SkippedNew);
    // The same opcode of resource manager Heap is a HOT update.
    let update = Sample::new(RmgrId::HEAP, 0x40, &[0; 14]).block(0, 5, &[]).vm(3, 0).version(PgVersion::V18);
    assert_eq!(update.apply(3, &mut [0; 8192]).unwrap(), Applied::SkippedNew);
}

/// A multi-insert whose first tuple fits and whose second one has no data.
fn half_insert(data: &[u8]) -> Sample<'_> {
    let main = [0, 0, 2, 0, 2, 0, 3, 0];
    Sample::new(RmgrId::HEAP2, 0x50, &main).block(0, 9, data)
}

#[test]
fn a_failed_apply_leaves_the_page_as_it_was() {
    let data = [&[8u8, 0, 0, 0, 0, 0, 24][..], &[7; 8]].concat();
    let mut page = with_tuple();
    assert!(half_insert(&data).apply(0, &mut page).is_err());
    assert_eq!(page, with_tuple());

    let sample = half_insert(&data);
    sample.with_record(|record| {
        let mut page = with_tuple();
        assert!(apply_in_place(&sample.ctx, &mut page, record, 0, END).is_err());
        assert_ne!(page, with_tuple(), "the first tuple was there when the second one failed");
    });
}

#[test]
fn an_image_that_cannot_be_restored_leaves_the_page_as_it_was() {
    let mut page = with_tuple();
    let record = confirm().compressed_image(&[0, 1, 2, 3, 4]);
    let error = record.apply(0, &mut page).unwrap_err();
    assert!(matches!(error, RedoError::Failed { fault: Fault::Image(_), .. }), "{error}");
    assert_eq!(page, with_tuple());
}

#[test]
fn a_chain_is_the_records_one_by_one() {
    let (confirm, data) = (confirm(), [1u8; 9]);
    let wrong = half_insert(&data);
    let mut page = with_tuple();
    confirm.changes(0, &mut page);
    confirm.with_record(|first| {
        let (chain, applied) = Chain::new(with_tuple()).apply(&confirm.ctx, first, 0, END).unwrap();
        assert_eq!(applied, Applied::Changed);
        let (chain, applied) = chain.apply(&confirm.ctx, first, 0, END).unwrap();
        assert_eq!(applied, Applied::SkippedByLsn);
        let chain = chain
            .change::<()>(|page| {
                page[8191] = 1;
                Ok(())
            })
            .unwrap();
        let after = chain.into_page();
        assert_eq!((after[8191], &after[..8191]), (1, &page[..8191]));
        wrong.with_record(|record| assert!(Chain::new(after).apply(&wrong.ctx, record, 0, END + 8).is_err()));
    });
}

#[test]
fn a_page_that_starts_anew_has_changed() {
    // The map's bits of block 0 are clear on an empty map page: the only change is to initialize it.
    let visible = Sample::new(RmgrId::HEAP2, 0x40, &[0; 5]).vm(0, 0).block(1, 0, &[]);
    assert_eq!(visible.apply(0, &mut [0; 8192]).unwrap(), Applied::Changed);
    let lock = Sample::new(RmgrId::HEAP, 0x60, &[0; 8]).vm(0, 0).will_init();
    let mut page = with_tuple();
    assert_eq!(lock.apply(0, &mut page).unwrap(), Applied::Changed);
    assert_eq!(*page, [0; 8192]);
}
