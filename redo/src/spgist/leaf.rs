//! Leaf tuples: insertion, and moving a chain to another page.

use postgres_formats::cursor::{Cursor, u8_at, u16_at};
use postgres_formats::page::PageMut;

use super::page::{Parent, SourceState, flag, init};
use super::slots;
use super::tuple::{self, State};
use crate::data::take_u16s;
use crate::error::Fault;
use crate::op::Op;

/// `spgxlogAddLeaf`: newPage 0, storesNulls 1, offnumLeaf 2, offnumHeadLeaf 4, offnumParent 6, nodeI 8, tuple 10.
/// Blocks: 0 leaf page, 1 parent.
pub(super) fn add(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let main = op.main;
    let (offset, head) = (u16_at(main, 2)?, u16_at(main, 4)?);
    if op.block.id == 1 {
        return Parent::read(main, 6)?.set_link(page, op.need_blkno(0)?, offset);
    }
    if u8_at(main, 0)? != 0 {
        init(page, flag::LEAF, u8_at(main, 1)? != 0)?;
    }
    let mut tuples = Cursor::new(main);
    tuples.skip(10)?;
    let leaf = tuple::take_leaf(&mut tuples)?;
    if offset == head {
        // The chain's head was dead and is replaced in place.
        return slots::replace(page, leaf, offset);
    }
    slots::add_or_replace(page, leaf, offset)?;
    if head != 0 {
        tuple::set_next(page.item_mut(head)?, offset)?;
    }
    Ok(())
}

/// `spgxlogMoveLeafs`: nMoves 0, newPage 2, replaceDead 3, storesNulls 4, offnumParent 6, nodeI 8, state 12, then at
/// 20 the offsets of the leaving tuples, their new offsets (one more, for a new tuple; or only one, if all that leave
/// are dead), and the tuples. Blocks: 0 source, 1 destination, 2 parent.
pub(super) fn move_chain(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let main = op.main;
    let moves = usize::from(u16_at(main, 0)?);
    let inserts = if u8_at(main, 3)? != 0 { 1 } else { moves + 1 };
    let state = SourceState::read(main, 12)?;
    let mut lists = Cursor::new(main);
    lists.skip(20)?;
    let leaving = take_u16s(&mut lists, moves)?;
    let arriving = take_u16s(&mut lists, inserts)?;
    let head = arriving.last().copied().unwrap_or_default();
    let destination = (op.need_blkno(1)?, head);
    match op.block.id {
        0 => {
            let first = if state.is_build { State::Placeholder } else { State::Redirect };
            slots::kill_many(page, &leaving, first, State::Placeholder, destination, state.xid)
        }
        1 => {
            if u8_at(main, 2)? != 0 {
                init(page, flag::LEAF, u8_at(main, 4)? != 0)?;
            }
            for offset in arriving {
                slots::add_or_replace(page, tuple::take_leaf(&mut lists)?, offset)?;
            }
            Ok(())
        }
        _ => Parent::read(main, 6)?.set_link(page, destination.0, head),
    }
}
