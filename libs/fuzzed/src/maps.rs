//! Changes to visibility map and SLRU pages without a block reference: total for any arguments, deterministic, and
//! written values can be read back.

use postgres_formats::cursor::{Cursor, Truncated};
use redo::slru::{self, XactStatus};
use redo::vm;

type Page = [u8; 8192];

pub(crate) fn run(input: &[u8]) {
    let (mut page, mut again) = ([0; 8192], [0; 8192]);
    let _ = changes(input, &mut page);
    let _ = changes(input, &mut again);
    assert!(page == again, "the second time gave another page");
}

fn changes(input: &[u8], page: &mut Page) -> Result<(), Truncated> {
    let mut input = Cursor::new(input);
    let fill = input.u8()?;
    page.fill(fill);
    while input.remaining() > 0 {
        change(&mut input, page)?;
    }
    Ok(())
}

fn change(input: &mut Cursor<'_>, page: &mut Page) -> Result<(), Truncated> {
    let (kind, number, count, value) = (input.u8()?, input.u32()?, input.u8()?, input.u32()?);
    let numbers = (0..u32::from(count)).map(|i| value.wrapping_add(i));
    match kind % 8 {
        0 => {
            vm::clear_bits(page, number, count);
            assert_eq!(vm::status(page, number) & count, 0);
        }
        1 => {
            let at = vm::position(number);
            vm::truncate_tail(page, at.byte, at.shift);
            assert_eq!(vm::status(page, number), 0);
        }
        2 => slru::set_xact_status(page, number, numbers, XactStatus::Committed),
        3 => slru::set_xact_status(page, number, numbers, XactStatus::Aborted),
        4 => slru::create_multixact_offset(page, number, value, input.u32()?, count.into()),
        5 => slru::set_multixact_offset(page, number, value, input.u32()?),
        6 => slru::create_multixact_members(page, number, value, numbers.map(|xid| (xid, xid as u8))),
        _ => slru::set_commit_ts(page, number, numbers, i64::from(value) << 20, count.into()),
    }
    // The usual case: a page that has the entry.
    match kind % 8 {
        2 => slru::set_xact_status(page, value / 32768, [value], XactStatus::Committed),
        4 => slru::create_multixact_offset(page, value / 2048, value, number, count.into()),
        6 => slru::create_multixact_members(page, value / 1636, value, [(number, count)]),
        7 => slru::set_commit_ts(page, value / 819, [value], -1, count.into()),
        _ => {}
    }
    Ok(())
}
