//! Rules common to all resource managers: full-page images, new pages, page LSNs.

use postgres_formats::image::restore_image;
use postgres_formats::page::{PageBytes, PageMut};
use postgres_formats::record::{BlockRef, DecodedRecord, RelFile};
use postgres_formats::rmgr::{RmgrId, record_name};

use crate::context::RedoContext;
use crate::error::{Fault, RecordContext, RedoError};
use crate::op::{Op, Outcome};
use crate::{brin, btree, generic, gin, gist, hash, heap, heap2, sequence, spgist};

/// What a record did to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The page now contains the record's change.
    Changed,
    /// The page already contains the change: its LSN is not older than the record (`BLK_DONE`).
    SkippedByLsn,
    /// The page does not exist: it is all zero and the record does not create it (`BLK_NOTFOUND`). A server accepts
    /// this only if the page or relation is dropped later.
    SkippedNew,
    /// The record changes nothing on this page.
    Unchanged,
}

/// Operation codes of XLOG records with blocks.
const XLOG_FPI_FOR_HINT: u8 = 0xA0;
const XLOG_FPI: u8 = 0xB0;

/// Applies `rec`, which ends at `end_lsn`, to the page of its block reference `block_id`.
///
/// `page` is the version before the record, all zero if there is none. Of the other block references only relation,
/// fork, block number and flags are read, so the record may be reduced to this block. `pd_checksum` is not
/// maintained.
///
/// The page is copied before the record is applied, to restore it on error; [`Chain`](crate::Chain) avoids the copy.
///
/// # Errors
///
/// [`RedoError`] if there is no such block, if the record type is unknown, or if record and page do not fit together.
/// The page is then unchanged.
pub fn apply_record(
    ctx: &RedoContext,
    page: &mut PageBytes,
    rec: &DecodedRecord<'_>,
    block_id: u8,
    end_lsn: u64,
) -> Result<Applied, RedoError> {
    let before = *page;
    apply_in_place(ctx, page, rec, block_id, end_lsn).inspect_err(|_| *page = before)
}

/// As [`apply_record`], but after an error the page's content is unspecified: it must not be used.
pub(crate) fn apply_in_place(
    ctx: &RedoContext,
    page: &mut PageBytes,
    rec: &DecodedRecord<'_>,
    block_id: u8,
    end_lsn: u64,
) -> Result<Applied, RedoError> {
    let Some(block) = rec.block(block_id) else {
        return Err(RedoError::NoSuchBlock(describe(ctx, rec, block_id, None, end_lsn)));
    };
    let (header, blocks) = (&rec.header, rec.blocks.as_slice());
    let op = Op { ctx, header, blocks, main: rec.main_data, block, end_lsn };
    apply(&op, &mut PageMut::new(page)).map_err(|fault| {
        let context = describe(ctx, rec, block_id, Some(block), end_lsn);
        match fault {
            Fault::Unsupported => RedoError::Unsupported { rmgr: context.rmgr, record: context.record, context },
            fault => RedoError::Failed { context, fault },
        }
    })
}

fn apply(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Applied, Fault> {
    if let Some(image) = op.block.image.filter(|image| image.apply) {
        restore_image(&image, page.bytes_mut())?;
        if op.header.rmid == RmgrId::GIST.0 {
            gist::after_image(op, page)?;
        }
        // An all-zero page stays all zero: an LSN on it would make it look used.
        if !page.is_new() {
            page.set_lsn(op.end_lsn);
        }
        return Ok(Applied::Changed);
    }
    if op.header.rmid == RmgrId::XLOG.0 {
        return xlog_without_image(op);
    }
    let starts_anew = op.block.will_init || (heap2::may_create_page(op) && page.is_new());
    if op.block.will_init {
        page.bytes_mut().fill(0);
    } else if starts_anew {
        page.init(0);
    } else if page.is_new() {
        return Ok(Applied::SkippedNew);
    } else if op.end_lsn <= page.lsn() {
        return Ok(Applied::SkippedByLsn);
    }
    match dispatch(op, page)? {
        Outcome::Changed => page.set_lsn(op.end_lsn),
        Outcome::Unchanged if !starts_anew => return Ok(Applied::Unchanged),
        Outcome::ChangedKeepLsn | Outcome::Unchanged => {}
    }
    Ok(Applied::Changed)
}

fn dispatch(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    match RmgrId(op.header.rmid) {
        RmgrId::HEAP => heap::redo(op, page),
        RmgrId::HEAP2 => heap2::redo(op, page),
        RmgrId::BTREE => btree::redo(op, page),
        RmgrId::HASH => hash::redo(op, page),
        RmgrId::GIN => gin::redo(op, page),
        RmgrId::GIST => gist::redo(op, page),
        RmgrId::SEQ => sequence::redo(op, page),
        RmgrId::SPGIST => spgist::redo(op, page),
        RmgrId::BRIN => brin::redo(op, page),
        RmgrId::GENERIC => generic::redo(op, page),
        _ => Err(Fault::Unsupported),
    }
}

/// XLOG records change pages only by images. A hint record may lack one if full-page writes are off.
fn xlog_without_image(op: &Op<'_>) -> Result<Applied, Fault> {
    match op.opcode() {
        XLOG_FPI_FOR_HINT => Ok(Applied::Unchanged),
        XLOG_FPI => Err(Fault::Inconsistent("full-page image record has no image to apply")),
        _ => Err(Fault::Unsupported),
    }
}

fn describe(
    ctx: &RedoContext,
    rec: &DecodedRecord<'_>,
    block_id: u8,
    block: Option<&BlockRef<'_>>,
    end_lsn: u64,
) -> RecordContext {
    let rmid = RmgrId(rec.header.rmid);
    RecordContext {
        rmgr: rmid.name(),
        rmid: rmid.0,
        record: record_name(ctx.version, rmid, rec.header.info),
        info: rec.header.info,
        end_lsn,
        block_id,
        rel: block.map_or_else(RelFile::default, |b| b.rel),
        fork: block.map_or(0, |b| b.fork),
        blkno: block.map_or(0, |b| b.blkno),
    }
}

#[cfg(test)]
mod tests;
