//! Pages of a toy table, as a Postgres would have them in its buffers: what redo makes of its records must be the same.
//! Nothing of this is shared with redo (`bufpage.h`, `itemid.h`, `htup_details.h`).

use bytes::Bytes;
use postgres_formats::BLCKSZ;
use utils::lsn::Lsn;

/// `pd_lower`, `pd_upper`, `pd_special`, `pd_pagesize_version`.
const LOWER: usize = 12;
const UPPER: usize = 14;
const SPECIAL: usize = 16;
const VERSION: usize = 18;
/// The page's header, and a line pointer.
const HEADER: u16 = 24;
const POINTER: u16 = 4;
/// The fixed part of a tuple's header; then the attributes follow after a byte that aligns them.
const TUPLE_HEADER: u16 = 23;
const ATTRIBUTES: u8 = 24;
/// One attribute; of variable width, not deleted.
const INFOMASK2: u16 = 1;
const INFOMASK: u16 = 0x0802;

/// A page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page(pub Box<[u8; BLCKSZ]>);

impl Page {
    /// A page without tuples.
    pub fn new() -> Self {
        let mut page = Self(Box::new([0; BLCKSZ]));
        page.set(LOWER, HEADER);
        page.set(UPPER, BLCKSZ as u16);
        page.set(SPECIAL, BLCKSZ as u16);
        page.set(VERSION, BLCKSZ as u16 | 4);
        page
    }

    /// The page as somebody finds it who asks for it.
    pub fn bytes(&self) -> Bytes {
        Bytes::copy_from_slice(&self.0[..])
    }

    /// The last change is that of the record that ends at `lsn`.
    pub fn set_lsn(&mut self, lsn: Lsn) {
        self.0[..4].copy_from_slice(&((lsn.0 >> 32) as u32).to_le_bytes());
        self.0[4..8].copy_from_slice(&(lsn.0 as u32).to_le_bytes());
    }

    /// The number of tuples.
    pub fn tuples(&self) -> u16 {
        (self.get(LOWER) - HEADER) / POINTER
    }

    /// Whether a tuple with so many bytes of attributes can be added.
    pub fn has_room(&self, len: usize) -> bool {
        let size = (usize::from(ATTRIBUTES) + len).next_multiple_of(8);
        usize::from(self.get(UPPER) - self.get(LOWER)) >= size + usize::from(POINTER)
    }

    /// Adds a tuple of transaction `xid` to this page, which is block `number`. Returns which one it is, and what the
    /// record says of it.
    pub fn insert(&mut self, number: u32, xid: u32, attributes: &[u8]) -> (u16, Vec<u8>) {
        let offset = self.tuples() + 1;
        let fixed = [&INFOMASK2.to_le_bytes()[..], &INFOMASK.to_le_bytes(), &[ATTRIBUTES]].concat();
        let logged = [&fixed[..], &[0], attributes].concat();
        let (block, position) = (((number >> 16) as u16, number as u16), offset);
        let mut tuple = [&xid.to_le_bytes()[..], &[0; 8]].concat();
        for word in [block.0, block.1, position] {
            tuple.extend(word.to_le_bytes());
        }
        tuple.extend(&logged);
        assert_eq!(tuple.len() - attributes.len(), usize::from(TUPLE_HEADER) + 1);
        let upper = self.get(UPPER) - (tuple.len() as u16).next_multiple_of(8);
        let lower = self.get(LOWER);
        let pointer = u32::from(upper) | 1 << 15 | (tuple.len() as u32) << 17;
        self.0[usize::from(lower)..][..4].copy_from_slice(&pointer.to_le_bytes());
        self.0[usize::from(upper)..][..tuple.len()].copy_from_slice(&tuple);
        self.set(LOWER, lower + POINTER);
        self.set(UPPER, upper);
        (offset, logged)
    }

    /// The attributes of a tuple, to be written over.
    pub fn attributes(&mut self, offset: u16) -> &mut [u8] {
        let at = usize::from(HEADER + (offset - 1) * POINTER);
        let pointer = u32::from_le_bytes([self.0[at], self.0[at + 1], self.0[at + 2], self.0[at + 3]]);
        let (start, len) = ((pointer & 0x7fff) as usize, (pointer >> 17) as usize);
        &mut self.0[start + usize::from(ATTRIBUTES)..start + len]
    }

    fn get(&self, field: usize) -> u16 {
        u16::from_le_bytes([self.0[field], self.0[field + 1]])
    }

    fn set(&mut self, field: usize, value: u16) {
        self.0[field..field + 2].copy_from_slice(&value.to_le_bytes());
    }
}
