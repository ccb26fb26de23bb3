//! Freezing: replaces old transaction ids in tuple headers with values that need no look-up.

use postgres_formats::cursor::{Cursor, u16_at};
use postgres_formats::page::PageMut;

use crate::error::Fault;
use crate::heap::tuple::tuple_mut;
use crate::op::{Op, Outcome};

/// Length of an `xl_heap_freeze_plan` (16), `xlhp_freeze_plan` (17 and later): xmax 0, infomask2 4, infomask 6,
/// frzflags 8, ntuples 10.
pub(super) const PLAN_LEN: usize = 12;

/// `XLH_FREEZE_XVAC`
const FREEZE_XVAC: u8 = 0x02;
/// `XLH_INVALID_XVAC`
const INVALID_XVAC: u8 = 0x04;
const FROZEN_XID: u32 = 2;

/// The new fields of a tuple header.
struct NewState {
    xmax: u32,
    infomask2: u16,
    infomask: u16,
    flags: u8,
}

impl NewState {
    fn apply(&self, page: &mut PageMut<'_>, offset: u16) -> Result<(), Fault> {
        let mut tuple = tuple_mut(page, offset)?;
        tuple.set_xmax(self.xmax);
        if self.flags & FREEZE_XVAC != 0 {
            tuple.set_xvac(FROZEN_XID);
        }
        if self.flags & INVALID_XVAC != 0 {
            tuple.set_xvac(0);
        }
        tuple.set_infomask(self.infomask);
        tuple.set_infomask2(self.infomask2);
        Ok(())
    }
}

/// 14 and 15: the block data are `xl_heap_freeze_tuple`s, one per tuple: xmax 0, offset 4, infomask2 6, infomask 8,
/// frzflags 10, one byte unused. Main data: conflict xid 0, ntuples 4.
pub(super) fn freeze_tuples(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let mut data = Cursor::new(op.data());
    for _ in 0..u16_at(op.main, 4)? {
        let xmax = data.u32()?;
        let offset = data.u16()?;
        let (infomask2, infomask, flags) = (data.u16()?, data.u16()?, data.u8()?);
        data.skip(1)?;
        NewState { xmax, infomask2, infomask, flags }.apply(page, offset)?;
    }
    Ok(Outcome::Changed)
}

/// 16: the block data are plans, then the offsets of all plans' tuples. Main data: conflict xid 0, nplans 4.
pub(super) fn freeze_by_plans(op: &Op<'_>, page: &mut PageMut<'_>) -> Result<Outcome, Fault> {
    let count = usize::from(u16_at(op.main, 4)?);
    let mut data = Cursor::new(op.data());
    let plans = data.take(count * PLAN_LEN)?;
    execute_plans(page, plans, data)?;
    Ok(Outcome::Changed)
}

/// Each plan applies to the next `ntuples` of `offsets`.
pub(super) fn execute_plans(page: &mut PageMut<'_>, plans: &[u8], mut offsets: Cursor<'_>) -> Result<(), Fault> {
    let mut plans = Cursor::new(plans);
    while plans.remaining() > 0 {
        let xmax = plans.u32()?;
        let (infomask2, infomask, flags) = (plans.u16()?, plans.u16()?, plans.u8()?);
        plans.skip(1)?;
        let state = NewState { xmax, infomask2, infomask, flags };
        for _ in 0..plans.u16()? {
            state.apply(page, offsets.u16()?)?;
        }
    }
    Ok(())
}
