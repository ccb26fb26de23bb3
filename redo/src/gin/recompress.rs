//! Changes to a posting tree's leaf page: single segments (compressed posting lists) are replaced, added or removed.

use postgres_formats::cursor::Cursor;
use postgres_formats::page::PageMut;

use super::page::{DATA_START, FLAGS, SPECIAL_SIZE, flag, max_offset, set_max_offset};
use super::posting_list::{self, TidNumber};
use crate::data::take_tuple;
use crate::error::Fault;
use crate::index_tuple::TID_LEN;
use crate::page::RedoPage;

/// `GIN_SEGMENT_*`
mod action {
    pub(super) const DELETE: u8 = 1;
    pub(super) const INSERT: u8 = 2;
    pub(super) const REPLACE: u8 = 3;
    pub(super) const ADD_ITEMS: u8 = 4;
}

/// `ginxlogRecompressDataLeaf`: number of actions; then for each action the segment's number on the old page, the
/// kind, and a segment or the added TIDs. Segments without an action are kept.
pub(super) fn redo(data: &[u8], page: &mut PageMut<'_>) -> Result<(), Fault> {
    let old = old_segments(page)?;
    let mut old = Segments { bytes: Cursor::new(&old), number: 0 };
    let mut new = Vec::with_capacity(8192);
    let mut data = Cursor::new(data);
    for _ in 0..data.u16()? {
        let (number, kind) = (data.u8()?, data.u8()?);
        let payload = match kind {
            action::INSERT | action::REPLACE => data.take(posting_list::size(data.rest())?)?,
            action::ADD_ITEMS => {
                let count = usize::from(data.u16()?);
                data.take(count * TID_LEN)?
            }
            action::DELETE => &[],
            _ => return Err(Fault::Inconsistent("unknown change of a posting list")),
        };
        while old.number < number {
            new.extend_from_slice(old.next()?);
        }
        match kind {
            action::INSERT => new.extend_from_slice(payload),
            action::REPLACE => {
                old.next()?;
                new.extend_from_slice(payload);
            }
            action::ADD_ITEMS => {
                let merged = posting_list::merge(&posting_list::decode(old.next()?)?, &tid_numbers(payload)?);
                new.extend_from_slice(&posting_list::encode(&merged)?);
            }
            _ => drop(old.next()?),
        }
    }
    new.extend_from_slice(old.bytes.rest());
    page.put(DATA_START, &new)?;
    page.set_content_end(DATA_START + new.len())
}

/// The segments of the old page, in order.
struct Segments<'a> {
    bytes: Cursor<'a>,
    /// Number of the next segment.
    number: u8,
}

impl<'a> Segments<'a> {
    fn next(&mut self) -> Result<&'a [u8], Fault> {
        let size = posting_list::size(self.bytes.rest())?;
        let segment = take_tuple(&mut self.bytes, size)?;
        self.number = self.number.wrapping_add(1);
        Ok(segment)
    }
}

/// The page's segments. Pages from before 9.4, kept by `pg_upgrade`, hold plain TIDs: these become one segment, and
/// the page is marked as compressed.
fn old_segments(page: &mut PageMut<'_>) -> Result<Vec<u8>, Fault> {
    if page.special_u16(SPECIAL_SIZE, FLAGS)? & flag::COMPRESSED != 0 {
        let end = usize::from(page.lower());
        let len =
            end.checked_sub(DATA_START).ok_or(Fault::Inconsistent("posting tree page ends before its content"))?;
        return Ok(page.slice(DATA_START, len)?.to_vec());
    }
    let tids = tid_numbers(page.slice(DATA_START, usize::from(max_offset(page)?) * TID_LEN)?)?;
    page.change_special_flags(SPECIAL_SIZE, FLAGS, |flags| flags | flag::COMPRESSED)?;
    set_max_offset(page, 0)?;
    if tids.is_empty() { Ok(Vec::new()) } else { posting_list::encode(&tids) }
}

fn tid_numbers(bytes: &[u8]) -> Result<Vec<TidNumber>, Fault> {
    bytes.chunks_exact(TID_LEN).map(posting_list::tid_number).collect()
}
