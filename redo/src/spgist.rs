//! SP-GiST (resource manager 16).
//!
//! A tuple keeps its line pointer while others may refer to it: one that leaves a page is replaced by a dead tuple
//! that redirects to the new location or just reserves the line pointer.

mod inner;
mod leaf;
mod page;
mod slots;
mod tuple;
mod vacuum;

use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};

/// Record types (`access/spgxlog.h`).
mod opcode {
    pub(super) const ADD_LEAF: u8 = 0x10;
    pub(super) const MOVE_LEAFS: u8 = 0x20;
    pub(super) const ADD_NODE: u8 = 0x30;
    pub(super) const SPLIT_TUPLE: u8 = 0x40;
    pub(super) const PICKSPLIT: u8 = 0x50;
    pub(super) const VACUUM_LEAF: u8 = 0x60;
    pub(super) const VACUUM_ROOT: u8 = 0x70;
    pub(super) const VACUUM_REDIRECT: u8 = 0x80;
}

pub(crate) fn redo(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    match (op.opcode(), op.block.id) {
        (opcode::ADD_LEAF, 0..=1) => leaf::add(op, page)?,
        (opcode::MOVE_LEAFS, 0..=2) => leaf::move_chain(op, page)?,
        (opcode::ADD_NODE, 0..=2) => inner::add_node(op, page)?,
        (opcode::SPLIT_TUPLE, 0..=1) => inner::split_tuple(op, page)?,
        (opcode::PICKSPLIT, 0..=3) => inner::pick_split(op, page)?,
        (opcode::VACUUM_LEAF, 0) => vacuum::leaf(op, page)?,
        (opcode::VACUUM_ROOT, 0) => vacuum::root(op, page)?,
        (opcode::VACUUM_REDIRECT, 0) => vacuum::redirect(op, page)?,
        _ => return Err(Fault::Unsupported),
    }
    Ok(Outcome::Changed)
}
