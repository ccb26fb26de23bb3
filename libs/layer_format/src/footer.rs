//! The last block of a layer file, which locates its parts.

use crate::FormatError;
use crate::block::{BLOCK_SIZE, ENVELOPE_FILE_ID, FileId, open, seal};
use crate::bytes::Cursor;

/// First bytes of the footer.
pub const FOOTER_MAGIC: [u8; 8] = *b"PSLFOOT\n";

/// Locations of a layer file's parts. Blocks are numbered from the start of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// The file's id, as in its header.
    pub file_id: FileId,
    /// First block of the index pages; values precede it.
    pub index_block: u64,
    /// Number of index pages.
    pub index_pages: u32,
    /// First block of the fences.
    pub fences_block: u64,
    /// Length of the fences in bytes.
    pub fences_len: u64,
    /// Number of blocks of the key filter, which lie between the fences and the footer; 0 without one.
    pub filter_blocks: u32,
    /// Number of values in the index.
    pub entries: u64,
    /// Total length of these values in bytes.
    pub value_bytes: u64,
}

impl Footer {
    /// Encodes the footer as block `block` of its file.
    pub fn encode(&self, block: u64) -> [u8; BLOCK_SIZE] {
        let mut out = Vec::with_capacity(72);
        out.extend_from_slice(&FOOTER_MAGIC);
        out.extend_from_slice(&self.file_id.0.to_le_bytes());
        out.extend_from_slice(&self.index_block.to_le_bytes());
        out.extend_from_slice(&self.index_pages.to_le_bytes());
        out.extend_from_slice(&self.fences_block.to_le_bytes());
        out.extend_from_slice(&self.fences_len.to_le_bytes());
        out.extend_from_slice(&self.entries.to_le_bytes());
        out.extend_from_slice(&self.value_bytes.to_le_bytes());
        out.extend_from_slice(&self.filter_blocks.to_le_bytes());
        seal(ENVELOPE_FILE_ID, block, &out)
    }

    /// Decodes the footer from block `block` of its file, which must be the last one.
    pub fn decode(bytes: &[u8], block: u64) -> Result<Self, FormatError> {
        let mut cursor = Cursor::new(open(ENVELOPE_FILE_ID, block, bytes)?);
        if cursor.array()? != FOOTER_MAGIC {
            return Err(FormatError::new("the last block is not a footer: wrong magic"));
        }
        let footer = Footer {
            file_id: FileId(cursor.u64()?),
            index_block: cursor.u64()?,
            index_pages: cursor.u32()?,
            fences_block: cursor.u64()?,
            fences_len: cursor.u64()?,
            entries: cursor.u64()?,
            value_bytes: cursor.u64()?,
            // Zeros in files of version 1.
            filter_blocks: cursor.u32()?,
        };
        cursor.expect_zeros()?;
        let ordered =
            footer.index_block >= 1 && footer.index_block <= footer.fences_block && footer.fences_block <= block;
        if ordered { Ok(footer) } else { Err(FormatError::new("the footer's block numbers are out of order")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let footer = Footer {
            file_id: FileId(7),
            index_block: 5,
            index_pages: 2,
            fences_block: 9,
            fences_len: 48,
            filter_blocks: 3,
            entries: 100,
            value_bytes: 1234,
        };
        let block = footer.encode(10);
        assert_eq!(Footer::decode(&block, 10).unwrap(), footer);
        assert!(Footer::decode(&block, 11).is_err());
        for at in 0..BLOCK_SIZE {
            let mut damaged = block;
            damaged[at] ^= 1;
            assert!(Footer::decode(&damaged, 10).is_err(), "byte {at}");
        }
        assert!(Footer::decode(&Footer { fences_block: 4, ..footer }.encode(10), 10).is_err());
    }
}
