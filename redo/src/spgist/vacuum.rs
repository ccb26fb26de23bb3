//! VACUUM of leaf pages, of a root that is a leaf, and of old redirections.

use postgres_formats::cursor::{Cursor, u16_at};
use postgres_formats::page::PageMut;
use postgres_formats::version::PgVersion;

use super::page::{PLACEHOLDERS, REDIRECTIONS, SourceState, count};
use super::slots;
use super::tuple::{self, State};
use crate::data::take_u16s;
use crate::error::Fault;
use crate::op::Op;

/// No target tuple.
const NOWHERE: (u32, u16) = (u32::MAX, 0);

/// `spgxlogVacuumLeaf`: nDead 0, nPlaceholder 2, nMove 4, nChain 6, state 8, then at 16 lists of offsets: those that
/// become dead, those that become placeholders, move sources, move destinations, changed chain links, and their
/// targets.
pub(super) fn leaf(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let mut main = Cursor::new(op.main);
    let (dead, placeholders) = (main.u16()?, main.u16()?);
    let (moves, links) = (main.u16()?, main.u16()?);
    let xid = SourceState::read(op.main, 8)?.xid;
    main.skip(8)?;
    let mut list = |count: u16| take_u16s(&mut main, count.into());
    let (dead, placeholders) = (list(dead)?, list(placeholders)?);
    let (sources, destinations) = (list(moves)?, list(moves)?);
    let (from, to) = (list(links)?, list(links)?);

    slots::kill_many(page, &dead, State::Dead, State::Dead, NOWHERE, xid)?;
    slots::kill_many(page, &placeholders, State::Placeholder, State::Placeholder, NOWHERE, xid)?;
    // A chain's head must stay where it is, so its tuple swaps places with one that is removed.
    for (source, destination) in sources.iter().zip(&destinations) {
        let (a, b) = (page.item_id(*source)?, page.item_id(*destination)?);
        page.set_item_id(*source, b)?;
        page.set_item_id(*destination, a)?;
    }
    slots::kill_many(page, &sources, State::Placeholder, State::Placeholder, NOWHERE, xid)?;
    for (from, to) in from.iter().zip(to) {
        tuple::set_next(page.item_mut(*from)?, to)?;
    }
    Ok(())
}

/// `spgxlogVacuumRoot`: nDelete 0, state 4, then at 12 the offsets. Nothing refers to a root's tuples, so they are
/// simply deleted.
pub(super) fn root(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let count = u16_at(op.main, 0)?;
    let mut main = Cursor::new(op.main);
    main.skip(12)?;
    Ok(page.delete_items(&take_u16s(&mut main, count.into())?)?)
}

/// `spgxlogVacuumRedirect`: nToPlaceholder 0, firstPlaceholder 2, conflict xid 4, then the offsets (16 inserts a flag
/// for catalogs before them): redirections that no search needs anymore. Trailing placeholders are deleted.
pub(super) fn redirect(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let (changed, first_placeholder) = (u16_at(op.main, 0)?, u16_at(op.main, 2)?);
    let mut main = Cursor::new(op.main);
    main.skip(if op.ctx.version >= PgVersion::V16 { 10 } else { 8 })?;
    for offset in take_u16s(&mut main, changed.into())? {
        tuple::make_placeholder(page.item_mut(offset)?)?;
    }
    count(page, REDIRECTIONS, -i32::from(changed))?;
    count(page, PLACEHOLDERS, i32::from(changed))?;
    if first_placeholder != 0 {
        let removed: Vec<u16> = (first_placeholder..=page.max_offset()).collect();
        count(page, PLACEHOLDERS, -(removed.len() as i32))?;
        page.delete_items(&removed)?;
    }
    Ok(())
}
