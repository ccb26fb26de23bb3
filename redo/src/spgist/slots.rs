//! Changes to a page's line pointers that preserve the numbers of all others.

use postgres_formats::page::PageMut;

use super::page::{PLACEHOLDERS, REDIRECTIONS, count};
use super::tuple::{self, State};
use crate::error::Fault;

/// Adds a tuple at `offset`, replacing a placeholder if there is one (`addOrReplaceTuple`).
pub(super) fn add_or_replace(page: &mut PageMut<'_>, tuple: &[u8], offset: u16) -> Result<(), Fault> {
    if offset <= page.max_offset() {
        if !tuple::is_placeholder(page.item(offset)?)? {
            return Err(Fault::Inconsistent("tuple to be replaced is not a placeholder"));
        }
        count(page, PLACEHOLDERS, -1)?;
        page.delete_item(offset)?;
    }
    Ok(page.insert_item(tuple, offset)?)
}

/// Replaces the tuple at `offset`.
pub(super) fn replace(page: &mut PageMut<'_>, tuple: &[u8], offset: u16) -> Result<(), Fault> {
    page.delete_item(offset)?;
    Ok(page.insert_item(tuple, offset)?)
}

/// Replaces the tuple at `offset` with a dead one and updates the page's counters.
pub(super) fn kill(
    page: &mut PageMut<'_>,
    offset: u16,
    state: State,
    target: (u32, u16),
    xid: u32,
) -> Result<(), Fault> {
    page.delete_item(offset)?;
    add_dead(page, offset, state, target, xid)
}

/// Replaces the tuples at `offsets` with dead ones: the first of the list (not the lowest) with state `first`, the
/// others with state `rest` (`spgPageIndexMultiDelete`).
pub(super) fn kill_many(
    page: &mut PageMut<'_>,
    offsets: &[u16],
    first: State,
    rest: State,
    target: (u32, u16),
    xid: u32,
) -> Result<(), Fault> {
    let Some(head) = offsets.first() else {
        return Ok(());
    };
    let mut sorted = offsets.to_vec();
    sorted.sort_unstable();
    page.delete_items(&sorted)?;
    for offset in sorted {
        let state = if offset == *head { first } else { rest };
        add_dead(page, offset, state, target, xid)?;
    }
    Ok(())
}

fn add_dead(page: &mut PageMut<'_>, offset: u16, state: State, target: (u32, u16), xid: u32) -> Result<(), Fault> {
    page.insert_item(&tuple::dead(state, target, xid), offset)?;
    match state {
        State::Redirect => count(page, REDIRECTIONS, 1),
        State::Placeholder => count(page, PLACEHOLDERS, 1),
        State::Dead => Ok(()),
    }
}
