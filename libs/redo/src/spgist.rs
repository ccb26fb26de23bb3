//! SP-GiST (resource manager 16).
//!
//! Tuples never change their line pointer while others may refer to it: what leaves a page is replaced by a dead tuple
//! that redirects to the new place or just holds the line pointer.

mod inner;
mod leaf;
mod slots;
mod tuple;
mod vacuum;

use postgres_formats::cursor::{u8_at, u16_at, u32_at};
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::op::{Op, Outcome};
use crate::page::RedoPage;

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

/// Flags of a page.
mod flag {
    pub(super) const LEAF: u16 = 0x04;
    pub(super) const NULLS: u16 = 0x08;
}

/// `SpGistPageOpaqueData`: flags 0, redirections 2, placeholders 4, page id 6.
const SPECIAL_SIZE: usize = 8;
const FLAGS: usize = 0;
const REDIRECTIONS: usize = 2;
const PLACEHOLDERS: usize = 4;
/// `SPGIST_PAGE_ID`
const SPGIST_PAGE: u16 = 0xFF82;

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

/// What a record says of the state at its writing (`spgxlogState`): transaction 0, isBuild 4.
#[derive(Clone, Copy)]
struct SourceState {
    xid: u32,
    is_build: bool,
}

impl SourceState {
    fn read(main: &[u8], at: usize) -> Result<Self, Fault> {
        Ok(Self { xid: u32_at(main, at)?, is_build: u8_at(main, at + 4)? != 0 })
    }
}

/// A node of an inner tuple that gets a new downlink: line pointer of the inner tuple and number of the node.
#[derive(Clone, Copy)]
struct Parent {
    offset: u16,
    node: u16,
}

impl Parent {
    fn read(main: &[u8], at: usize) -> Result<Self, Fault> {
        Ok(Self { offset: u16_at(main, at)?, node: u16_at(main, at + 2)? })
    }

    fn set_link(self, page: &mut PageMut<'_>, blkno: u32, offset: u16) -> Result<(), Fault> {
        tuple::set_node_link(page.item_mut(self.offset)?, self.node, blkno, offset)
    }
}

/// Starts an empty page (`SpGistInitPage`).
fn init(page: &mut PageMut<'_>, flags: u16, stores_nulls: bool) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    let flags = if stores_nulls { flags | flag::NULLS } else { flags };
    page.put_special(SPECIAL_SIZE, FLAGS, &flags.to_le_bytes())?;
    Ok(page.put_special(SPECIAL_SIZE, 6, &SPGIST_PAGE.to_le_bytes())?)
}

/// Changes one of the counters in the special area.
fn count(page: &mut PageMut<'_>, counter: usize, change: i32) -> Result<(), Fault> {
    let change = change as u16;
    Ok(page.change_special_flags(SPECIAL_SIZE, counter, |n| n.wrapping_add(change))?)
}
