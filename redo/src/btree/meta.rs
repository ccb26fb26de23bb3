//! The metapage, which is rebuilt entirely by every record that changes it.

use postgres_formats::cursor::{u8_at, u32_at};
use postgres_formats::page::PageMut;

use super::special::{NO_BLOCK, Opaque, flag, init};
use crate::error::Fault;
use crate::op::Op;
use crate::page::RedoPage;

/// `BTREE_MAGIC`
const MAGIC: u32 = 0x0005_3162;
/// Where `BTMetaPageData` starts, and its size.
const START: usize = 24;
const SIZE: usize = 48;

/// Block data: `xl_btree_metadata` (version 0, root 4, level 8, fastroot 12, fastlevel 16, deleted pages 20,
/// allequalimage 24). On the page they follow a magic number, with the number of heap tuples (unused since 14) before
/// the last.
pub(super) fn restore(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let data = op.data();
    init(page, Opaque { prev: NO_BLOCK, next: NO_BLOCK, level: 0, flags: flag::META })?;
    page.put(START, &MAGIC.to_le_bytes())?;
    for field in 0..6 {
        page.put(START + 4 + field * 4, &u32_at(data, field * 4)?.to_le_bytes())?;
    }
    page.put(START + 32, &(-1.0f64).to_le_bytes())?;
    page.put(START + 40, &[u8_at(data, 24)?])?;
    page.set_content_end(START + SIZE)
}
