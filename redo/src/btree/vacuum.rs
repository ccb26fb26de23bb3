//! Deletion of leaf tuples, by VACUUM or when an insertion needs space. Posting lists may lose only some of their
//! TIDs.

use postgres_formats::cursor::{Cursor, u16_at};
use postgres_formats::page::PageMut;
use postgres_formats::version::PgVersion;

use super::posting::{self, LeafTuple};
use super::special::{CYCLE_ID, SPECIAL_SIZE, clear_flag, flag};
use crate::data::take_u16s;
use crate::error::Fault;
use crate::index_tuple::TID_LEN;
use crate::op::Op;
use crate::page::RedoPage;

/// `xl_btree_delete`: conflict xid 0, ndeleted 4, nupdated 6 (16 and later: a flag for catalogs).
pub(super) fn delete(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    remove(op.data(), u16_at(op.main, 4)?, u16_at(op.main, 6)?, page)
}

/// `xl_btree_vacuum`: ndeleted 0, nupdated 2.
pub(super) fn vacuum(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    remove(op.data(), u16_at(op.main, 0)?, u16_at(op.main, 2)?, page)?;
    if op.ctx.version >= PgVersion::V18 {
        page.put_special(SPECIAL_SIZE, CYCLE_ID, &[0; 2])?;
    }
    Ok(())
}

/// Block data: offsets of deleted items, offsets of updated items, then for each updated item the number of its
/// deleted TIDs and their indexes in the original list. All offsets are those before any deletion.
fn remove(data: &[u8], deleted: u16, updated: u16, page: &mut PageMut<'_>) -> Result<(), Fault> {
    let mut data = Cursor::new(data);
    let deleted = take_u16s(&mut data, deleted.into())?;
    let updated = take_u16s(&mut data, updated.into())?;
    for offset in updated {
        let count = data.u16()?;
        let indexes = take_u16s(&mut data, count.into())?;
        let shrunk = without_tids(page.item(offset)?, &indexes)?;
        page.overwrite_item(offset, &shrunk)?;
    }
    page.delete_items(&deleted)?;
    clear_flag(page, flag::HAS_GARBAGE)
}

fn without_tids(tuple: &[u8], indexes: &[u16]) -> Result<Vec<u8>, Fault> {
    if !posting::is_posting(tuple)? {
        return Err(Fault::Inconsistent("item is not a posting list tuple"));
    }
    let LeafTuple { key, tids } = LeafTuple::parse(tuple)?;
    let mut deleted = indexes.iter().peekable();
    let mut kept = Vec::with_capacity(tids.len());
    for (index, tid) in tids.chunks_exact(TID_LEN).enumerate() {
        if deleted.next_if(|deleted| usize::from(**deleted) == index).is_none() {
            kept.extend_from_slice(tid);
        }
    }
    if deleted.next().is_some() {
        return Err(Fault::Inconsistent("posting list has no such index"));
    }
    posting::form(key, &kept)
}
