//! Removal of dead tuples from a heap page: changes line pointers, then compacts the remaining tuples.

use postgres_formats::cursor::{Cursor, u8_at, u16_at};
use postgres_formats::page::{ItemId, PageMut};
use postgres_formats::version::PgVersion;

use super::freeze;
use crate::data::{take_u16s, u16s};
use crate::error::Fault;
use crate::op::{Op, Outcome};

/// `XLHP_*` flags of the record format of 17 and later.
mod flag {
    pub(super) const CLEANUP_LOCK: u8 = 0x04;
    pub(super) const FREEZE_PLANS: u8 = 0x10;
    pub(super) const REDIRECTIONS: u8 = 0x20;
    pub(super) const DEAD_ITEMS: u8 = 0x40;
    pub(super) const UNUSED_ITEMS: u8 = 0x80;
}

/// New states for line pointers.
#[derive(Default)]
struct Changes {
    /// Pairs: from, to.
    redirected: Vec<u16>,
    dead: Vec<u16>,
    unused: Vec<u16>,
}

impl Changes {
    fn is_empty(&self) -> bool {
        self.redirected.is_empty() && self.dead.is_empty() && self.unused.is_empty()
    }

    fn apply(&self, page: &mut PageMut<'_>) -> Result<(), Fault> {
        for [from, to] in self.redirected.as_chunks::<2>().0 {
            page.set_item_id(*from, ItemId::redirect(*to))?;
        }
        for offset in &self.dead {
            page.set_item_id(*offset, ItemId::DEAD)?;
        }
        for offset in &self.unused {
            page.set_item_id(*offset, ItemId::UNUSED)?;
        }
        Ok(())
    }
}

/// `xl_heap_prune` of 14-16: conflict xid 0, nredirected 4, ndead 6. Block data: redirections, dead; the rest is
/// unused.
pub(super) fn prune(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let redirected = usize::from(u16_at(op.main, 4)?);
    let dead = usize::from(u16_at(op.main, 6)?);
    let mut data = Cursor::new(op.data());
    let changes = Changes {
        redirected: take_u16s(&mut data, 2 * redirected)?,
        dead: take_u16s(&mut data, dead)?,
        unused: u16s(data.rest()),
    };
    changes.apply(page)?;
    compact(op, page)?;
    Ok(Outcome::Changed)
}

/// `xl_heap_vacuum` of 14-16: the block data are the dead line pointers that become unused.
pub(super) fn vacuum(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let changes = Changes { unused: u16s(op.data()), ..Changes::default() };
    changes.apply(page)?;
    page.truncate_line_pointers()?;
    Ok(Outcome::Changed)
}

/// `xl_heap_prune` of 17 and later: reason 0, flags 1. Block data, each part only if its flag is set: freeze plans,
/// redirections, dead, unused, and at the end the offsets of the frozen tuples.
pub(super) fn prune_and_freeze(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let flags = u8_at(op.main, 1)?;
    let mut data = Cursor::new(op.data());
    let mut plans: &[u8] = &[];
    if flags & flag::FREEZE_PLANS != 0 {
        let count = usize::from(data.u16()?);
        data.skip(2)?;
        plans = data.take(count * freeze::PLAN_LEN)?;
    }
    let mut part = |flag: u8, width: usize| -> Result<Vec<u16>, Fault> {
        if flags & flag == 0 {
            return Ok(Vec::new());
        }
        let count = usize::from(data.u16()?);
        take_u16s(&mut data, count * width)
    };
    let changes = Changes {
        redirected: part(flag::REDIRECTIONS, 2)?,
        dead: part(flag::DEAD_ITEMS, 1)?,
        unused: part(flag::UNUSED_ITEMS, 1)?,
    };
    if !changes.is_empty() {
        changes.apply(page)?;
        if flags & flag::CLEANUP_LOCK != 0 {
            compact(op, page)?;
        } else {
            // Other backends may have been reading tuples at that time, so none was moved.
            page.truncate_line_pointers()?;
        }
    }
    freeze::execute_plans(page, plans, data)?;
    Ok(Outcome::Changed)
}

fn compact(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<(), Fault> {
    // 14 keeps unused line pointers at the end of the array.
    let truncate = op.ctx.version >= PgVersion::V15;
    Ok(page.repair_fragmentation(truncate)?)
}
