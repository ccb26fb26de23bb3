//! Reduces a record to what replay of one of its blocks needs, in the same format.
//!
//! A record that changes several pages is stored once per page. Replay needs only the page's own image and data, and
//! of the other block references only their headers (relation, fork, block number).

use super::decode as d;
use super::decoded::{BlockRef, DecodedRecord, HEADER_SIZE, RelFile};
use super::header::record_crc;

/// Appends to `out` the record with only the image and data of `block_id`.
///
/// The other block references keep their relation, fork, block number, and `will_init`; main data, origin, and top
/// transaction id are kept. Length and CRC are those of the new record. Never longer than the original.
pub fn reduce_to_block(rec: &DecodedRecord<'_>, block_id: u8, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_SIZE]);
    let mut previous = None;
    for block in &rec.blocks {
        let kept = if block.id == block_id { *block } else { BlockRef { image: None, data: &[], ..*block } };
        put_block_header(rec, &kept, previous, out);
        previous = Some(block.rel);
    }
    put_common_headers(rec, out);
    if let Some(block) = rec.block(block_id) {
        out.extend_from_slice(block.image.map_or(&[][..], |image| image.bytes));
        out.extend_from_slice(block.data);
    }
    out.extend_from_slice(rec.main_data);
    seal(rec, start, out);
}

fn put_block_header(rec: &DecodedRecord<'_>, block: &BlockRef<'_>, previous: Option<RelFile>, out: &mut Vec<u8>) {
    let same_rel = previous == Some(block.rel);
    let flag = |on: bool, bit: u8| if on { bit } else { 0 };
    let flags = block.fork
        | flag(block.image.is_some(), d::HAS_IMAGE)
        | flag(!block.data.is_empty(), d::HAS_DATA)
        | flag(block.will_init, d::WILL_INIT)
        | flag(same_rel, d::SAME_REL);
    out.extend_from_slice(&[block.id, flags]);
    out.extend_from_slice(&(block.data.len() as u16).to_le_bytes());
    put_image_header(rec, block, out);
    if !same_rel {
        for oid in [block.rel.spc, block.rel.db, block.rel.rel] {
            out.extend_from_slice(&oid.to_le_bytes());
        }
    }
    out.extend_from_slice(&block.blkno.to_le_bytes());
}

fn put_image_header(rec: &DecodedRecord<'_>, block: &BlockRef<'_>, out: &mut Vec<u8>) {
    let Some(image) = block.image else { return };
    let bits = d::ImageFlags::of(rec.version);
    let has_hole = image.hole_length != 0;
    let method = bits.compression.iter().find(|(_, method)| Some(*method) == image.compression);
    let info = if has_hole { bits.has_hole } else { 0 }
        | if image.apply { bits.apply } else { 0 }
        | method.map_or(0, |(bit, _)| *bit);
    out.extend_from_slice(&(image.bytes.len() as u16).to_le_bytes());
    out.extend_from_slice(&image.hole_offset.to_le_bytes());
    out.push(info);
    if has_hole && image.compression.is_some() {
        out.extend_from_slice(&image.hole_length.to_le_bytes());
    }
}

fn put_common_headers(rec: &DecodedRecord<'_>, out: &mut Vec<u8>) {
    if let Some(origin) = rec.origin {
        out.push(d::ID_ORIGIN);
        out.extend_from_slice(&origin.to_le_bytes());
    }
    if let Some(top_xid) = rec.top_xid {
        out.push(d::ID_TOP_XID);
        out.extend_from_slice(&top_xid.to_le_bytes());
    }
    match rec.main_data.len() {
        0 => {}
        len @ 1..=255 => out.extend_from_slice(&[d::ID_SHORT_MAIN, len as u8]),
        len => {
            out.push(d::ID_LONG_MAIN);
            out.extend_from_slice(&(len as u32).to_le_bytes());
        }
    }
}

/// Writes the header of the record that begins at `start` and ends at the end of `out`.
fn seal(rec: &DecodedRecord<'_>, start: usize, out: &mut [u8]) {
    let Some(record) = out.get_mut(start..) else {
        return;
    };
    let mut header = rec.header;
    header.total_len = record.len() as u32;
    put_header(record, &header.encode());
    if let Some(crc) = record_crc(record) {
        header.crc = crc;
        put_header(record, &header.encode());
    }
}

fn put_header(record: &mut [u8], header: &[u8; HEADER_SIZE]) {
    if let Some(place) = record.first_chunk_mut::<HEADER_SIZE>() {
        *place = *header;
    }
}
