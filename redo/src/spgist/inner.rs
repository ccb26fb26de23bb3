//! Inner tuples: adding a node, splitting the prefix, and splitting a leaf chain under a new inner tuple.

use postgres_formats::cursor::{Cursor, u8_at, u16_at};
use postgres_formats::page::PageMut;

use super::page::{Parent, SourceState, flag, init};
use super::slots;
use super::tuple::{self, State};
use crate::data::take_u16s;
use crate::error::Fault;
use crate::op::Op;

/// `spgxlogAddNode`: offnum 0, offnumNew 2, newPage 4, parentBlk 5, offnumParent 6, nodeI 8, state 12, inner tuple
/// 20. Blocks: 0 the page, 1 the page that the grown tuple moves to if necessary, 2 the parent if it is on neither.
pub(super) fn add_node(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let main = op.main;
    let (offset, new_offset) = (u16_at(main, 0)?, u16_at(main, 2)?);
    let mut tuples = Cursor::new(main);
    tuples.skip(20)?;
    let inner = tuple::take_inner(&mut tuples)?;
    let Some(new_blkno) = op.blkno_of(1) else {
        return slots::replace(page, inner, offset);
    };
    match op.block.id {
        0 => {
            let state = SourceState::read(main, 12)?;
            let kind = if state.is_build { State::Placeholder } else { State::Redirect };
            slots::kill(page, offset, kind, (new_blkno, new_offset), state.xid)?;
        }
        1 => {
            if u8_at(main, 4)? != 0 {
                init(page, 0, false)?;
            }
            slots::add_or_replace(page, inner, new_offset)?;
        }
        _ => {}
    }
    if u8_at(main, 5)? == op.block.id {
        Parent::read(main, 6)?.set_link(page, new_blkno, new_offset)?;
    }
    Ok(())
}

/// `spgxlogSplitTuple`: offnumPrefix 0, offnumPostfix 2, newPage 4, postfixBlkSame 5, then at 6 prefix and postfix
/// tuple. Blocks: 0 the prefix's page, 1 the postfix's if different.
pub(super) fn split_tuple(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let main = op.main;
    let (prefix_offset, postfix_offset) = (u16_at(main, 0)?, u16_at(main, 2)?);
    let same_page = u8_at(main, 5)? != 0;
    let mut tuples = Cursor::new(main);
    tuples.skip(6)?;
    let prefix = tuple::take_inner(&mut tuples)?;
    let postfix = tuple::take_inner(&mut tuples)?;
    if op.block.id == 0 {
        slots::replace(page, prefix, prefix_offset)?;
    } else if u8_at(main, 4)? != 0 {
        init(page, 0, false)?;
    }
    if same_page || op.block.id == 1 {
        slots::add_or_replace(page, postfix, postfix_offset)?;
    }
    Ok(())
}

/// `spgxlogPickSplit`.
struct PickSplit<'a> {
    init_source: bool,
    init_destination: bool,
    inner_offset: u16,
    init_inner: bool,
    stores_nulls: bool,
    inner_is_parent: bool,
    parent: Parent,
    state: SourceState,
    /// Offsets on the source page.
    leaving: Vec<u16>,
    /// Offsets on the source or the destination page.
    arriving: Vec<u16>,
    /// For each of `arriving`: 0 source, 1 destination page.
    pages: &'a [u8],
    inner: &'a [u8],
    leaves: Cursor<'a>,
}

impl<'a> PickSplit<'a> {
    /// isRootSplit 0, nDelete 2, nInsert 4, initSrc 6, initDest 7, offnumInner 8, initInner 10, storesNulls 11,
    /// innerIsParent 12, offnumParent 14, nodeI 16, state 20; at 28 the lists, the inner tuple, the leaf tuples.
    fn read(main: &'a [u8]) -> Result<Self, Fault> {
        let (deletes, inserts) = (usize::from(u16_at(main, 2)?), usize::from(u16_at(main, 4)?));
        let flag_at = |at| -> Result<bool, Fault> { Ok(u8_at(main, at)? != 0) };
        let mut lists = Cursor::new(main);
        lists.skip(28)?;
        let leaving = take_u16s(&mut lists, deletes)?;
        let arriving = take_u16s(&mut lists, inserts)?;
        let pages = lists.take(inserts)?;
        let inner = tuple::take_inner(&mut lists)?;
        Ok(Self {
            init_source: flag_at(6)?,
            init_destination: flag_at(7)?,
            inner_offset: u16_at(main, 8)?,
            init_inner: flag_at(10)?,
            stores_nulls: flag_at(11)?,
            inner_is_parent: flag_at(12)?,
            parent: Parent::read(main, 14)?,
            state: SourceState::read(main, 20)?,
            leaving,
            arriving,
            pages,
            inner,
            leaves: lists,
        })
    }

    /// Adds the leaf tuples that go to `page`, which is the source (0) or destination (1).
    fn add_leaves(mut self, page: &mut PageMut<'_>, selector: bool) -> Result<(), Fault> {
        for (offset, to_destination) in self.arriving.iter().zip(self.pages) {
            let leaf = tuple::take_leaf(&mut self.leaves)?;
            if (*to_destination != 0) == selector {
                slots::add_or_replace(page, leaf, *offset)?;
            }
        }
        Ok(())
    }
}

/// Distributes a leaf chain that is too long over the source and a destination page, under a new inner tuple. Blocks:
/// 0 source, 1 destination, 2 page of the inner tuple, 3 parent if it is on another page.
pub(super) fn pick_split(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let split = PickSplit::read(op.main)?;
    let inner = (op.need_blkno(2)?, split.inner_offset);
    match op.block.id {
        0 => {
            if split.init_source {
                init(page, flag::LEAF, split.stores_nulls)?;
            } else {
                let first = if split.state.is_build { State::Placeholder } else { State::Redirect };
                slots::kill_many(page, &split.leaving, first, State::Placeholder, inner, split.state.xid)?;
            }
            split.add_leaves(page, false)
        }
        1 => {
            if split.init_destination {
                init(page, flag::LEAF, split.stores_nulls)?;
            }
            split.add_leaves(page, true)
        }
        2 => {
            if split.init_inner {
                init(page, 0, split.stores_nulls)?;
            }
            slots::add_or_replace(page, split.inner, split.inner_offset)?;
            if split.inner_is_parent {
                split.parent.set_link(page, inner.0, inner.1)?;
            }
            Ok(())
        }
        _ => split.parent.set_link(page, inner.0, inner.1),
    }
}
