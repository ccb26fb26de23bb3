//! Decoded WAL records: header, block references with their images and data, main data.

mod decode;
mod decoded;
mod header;
mod reduce;
#[cfg(test)]
mod tests;

pub use decode::{RecordError, decode, decode_into};
pub use decoded::{
    BlockImage, BlockRef, DecodedRecord, HEADER_SIZE, ImageCompression, MAX_BLOCK_ID, MAX_RECORD_SIZE, RecordHeader,
    RelFile, XLR_CHECK_CONSISTENCY, XLR_SPECIAL_REL_UPDATE,
};
pub use header::{HeaderError, check_crc, peek, record_crc};
pub use reduce::reduce_to_block;
