//! Tuples: live leaf and inner tuples, and the three kinds of dead ones.

use postgres_formats::cursor::{Cursor, slice_at, u16_at, u32_at};

use crate::data::take_tuple;
use crate::error::Fault;
use crate::heap::tuple::tid_bytes;
use crate::index_tuple;

/// Kind of a tuple: the lowest two bits of its first word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum State {
    /// Sends concurrent searches to the tuple's new location.
    Redirect = 1,
    /// A removed leaf tuple whose line pointer other tuples still refer to.
    Dead = 2,
    /// Only preserves the numbers of later line pointers.
    Placeholder = 3,
}

/// Length of a dead tuple: state and size 0, t_info 4, pointer 6, xid 12.
pub(super) const DEAD_SIZE: usize = 16;
const POINTER: usize = 6;

/// Length of an inner tuple's header: state, flag, nodes and prefix size 0, size 4.
const INNER_HEADER: usize = 8;

/// Offset of a leaf tuple's `t_info`, whose low 14 bits are the next tuple's offset.
const LEAF_INFO: usize = 4;
const NEXT_OFFSET: u16 = 0x3FFF;

const STATE: u32 = 3;

pub(super) fn is_placeholder(tuple: &[u8]) -> Result<bool, Fault> {
    Ok(u32_at(tuple, 0)? & STATE == State::Placeholder as u32)
}

/// A dead tuple; only redirections have a target and a transaction id.
pub(super) fn dead(state: State, target: (u32, u16), xid: u32) -> [u8; DEAD_SIZE] {
    let ((blkno, offset), xid) = match state {
        State::Redirect => (target, xid),
        _ => ((u32::MAX, 0), 0),
    };
    let [w0, w1, w2, w3] = (state as u32 | (DEAD_SIZE as u32) << 2).to_le_bytes();
    let [p0, p1, p2, p3, p4, p5] = tid_bytes(blkno, offset);
    let [x0, x1, x2, x3] = xid.to_le_bytes();
    [w0, w1, w2, w3, 0, 0, p0, p1, p2, p3, p4, p5, x0, x1, x2, x3]
}

/// Turns a redirection into a placeholder; its transaction id is kept.
pub(super) fn make_placeholder(tuple: &mut [u8]) -> Result<(), Fault> {
    let word = u32_at(tuple, 0)? & !STATE | State::Placeholder as u32;
    put(tuple, 0, &word.to_le_bytes())?;
    put(tuple, POINTER, &tid_bytes(u32::MAX, 0))
}

/// Links a leaf tuple to the next one of its chain.
pub(super) fn set_next(tuple: &mut [u8], offset: u16) -> Result<(), Fault> {
    let info = u16_at(tuple, LEAF_INFO)? & !NEXT_OFFSET | offset & NEXT_OFFSET;
    put(tuple, LEAF_INFO, &info.to_le_bytes())
}

/// Makes node number `node` of an inner tuple point to a tuple (`spgUpdateNodeLink`).
pub(super) fn set_node_link(inner: &mut [u8], node: u16, blkno: u32, offset: u16) -> Result<(), Fault> {
    let word = u32_at(inner, 0)?;
    let nodes = (word >> 3) & 0x1FFF;
    let prefix_size = (word >> 16) as usize;
    if u32::from(node) >= nodes {
        return Err(Fault::Inconsistent("inner tuple has no such node"));
    }
    let mut at = INNER_HEADER + prefix_size;
    for _ in 0..node {
        at += index_tuple::size(inner.get(at..).unwrap_or_default())?;
    }
    put(inner, at, &tid_bytes(blkno, offset))
}

/// The next leaf tuple of a record.
pub(super) fn take_leaf<'a>(data: &mut Cursor<'a>) -> Result<&'a [u8], Fault> {
    let size = u32_at(data.rest(), 0)? >> 2;
    take_tuple(data, size as usize)
}

/// The next inner tuple of a record.
pub(super) fn take_inner<'a>(data: &mut Cursor<'a>) -> Result<&'a [u8], Fault> {
    let size = u16_at(data.rest(), 4)?;
    take_tuple(data, size.into())
}

fn put(tuple: &mut [u8], at: usize, bytes: &[u8]) -> Result<(), Fault> {
    slice_at(tuple, at, bytes.len())?;
    if let Some(target) = tuple.get_mut(at..at + bytes.len()) {
        target.copy_from_slice(bytes);
    }
    Ok(())
}
