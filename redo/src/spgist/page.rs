//! Definitions shared by all SP-GiST pages and records.

use postgres_formats::cursor::{u8_at, u16_at, u32_at};
use postgres_formats::page::PageMut;

use super::tuple;
use crate::error::Fault;
use crate::page::RedoPage;

/// Flags of a page.
pub(super) mod flag {
    pub(in crate::spgist) const LEAF: u16 = 0x04;
    pub(in crate::spgist) const NULLS: u16 = 0x08;
}

/// `SpGistPageOpaqueData`: flags 0, redirections 2, placeholders 4, page id 6.
pub(super) const SPECIAL_SIZE: usize = 8;
pub(super) const FLAGS: usize = 0;
pub(super) const REDIRECTIONS: usize = 2;
pub(super) const PLACEHOLDERS: usize = 4;
/// `SPGIST_PAGE_ID`
pub(super) const SPGIST_PAGE: u16 = 0xFF82;

/// State of the server when it wrote the record (`spgxlogState`): transaction 0, isBuild 4.
#[derive(Clone, Copy)]
pub(super) struct SourceState {
    pub(super) xid: u32,
    pub(super) is_build: bool,
}

impl SourceState {
    pub(super) fn read(main: &[u8], at: usize) -> Result<Self, Fault> {
        Ok(Self { xid: u32_at(main, at)?, is_build: u8_at(main, at + 4)? != 0 })
    }
}

/// A node of an inner tuple that gets a new downlink: offset of the inner tuple and number of the node.
#[derive(Clone, Copy)]
pub(super) struct Parent {
    pub(super) offset: u16,
    pub(super) node: u16,
}

impl Parent {
    pub(super) fn read(main: &[u8], at: usize) -> Result<Self, Fault> {
        Ok(Self { offset: u16_at(main, at)?, node: u16_at(main, at + 2)? })
    }

    pub(super) fn set_link(self, page: &mut PageMut<'_>, blkno: u32, offset: u16) -> Result<(), Fault> {
        tuple::set_node_link(page.item_mut(self.offset)?, self.node, blkno, offset)
    }
}

/// Initializes an empty page (`SpGistInitPage`).
pub(super) fn init(page: &mut PageMut<'_>, flags: u16, stores_nulls: bool) -> Result<(), Fault> {
    page.init(SPECIAL_SIZE as u16);
    let flags = if stores_nulls { flags | flag::NULLS } else { flags };
    page.put_special(SPECIAL_SIZE, FLAGS, &flags.to_le_bytes())?;
    Ok(page.put_special(SPECIAL_SIZE, 6, &SPGIST_PAGE.to_le_bytes())?)
}

/// Changes one of the counters in the special area.
pub(super) fn count(page: &mut PageMut<'_>, counter: usize, change: i32) -> Result<(), Fault> {
    let change = change as u16;
    Ok(page.change_special_flags(SPECIAL_SIZE, counter, |n| n.wrapping_add(change))?)
}
