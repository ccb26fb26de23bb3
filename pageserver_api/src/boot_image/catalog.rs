//! Index of the catalog blocks in a boot image.

use super::error::BootImageError;
use super::reader::{Reader, put_rel, seal};
use crate::reltag::{BlockNumber, RelTag};

const WHAT: &str = "index of catalog blocks";
const MAGIC: &[u8; 8] = b"PGSBOOTC";
const VERSION: u32 = 1;
const ENTRY_LEN: usize = 21;

/// A block of a catalog relation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CatalogBlock {
    /// The fork; the tablespace is given by OID.
    pub rel: RelTag,
    /// The block's number in the fork.
    pub block: BlockNumber,
    /// CRC-32C of its bytes.
    pub crc: u32,
}

/// Blocks in ascending order. The page of the n-th block starts at byte n * 8192 of the file of pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CatalogIndex(pub Vec<CatalogBlock>);

impl CatalogIndex {
    /// Encodes the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + self.0.len() * ENTRY_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_be_bytes());
        bytes.extend_from_slice(&(self.0.len() as u64).to_be_bytes());
        for CatalogBlock { rel, block, crc } in &self.0 {
            put_rel(&mut bytes, *rel);
            bytes.extend_from_slice(&block.to_be_bytes());
            bytes.extend_from_slice(&crc.to_be_bytes());
        }
        seal(bytes)
    }

    /// Decodes the file.
    pub fn decode(bytes: &[u8]) -> Result<Self, BootImageError> {
        let mut reader = Reader::open(WHAT, bytes, MAGIC, VERSION)?;
        let count = reader.count(ENTRY_LEN)?;
        let mut blocks = Vec::with_capacity(count);
        for _ in 0..count {
            blocks.push(CatalogBlock { rel: reader.rel()?, block: reader.u32()?, crc: reader.u32()? });
        }
        let place = |entry: &CatalogBlock| (entry.rel, entry.block);
        if !blocks.is_sorted_by(|one, next| place(one) < place(next)) {
            return Err(reader.damaged("its entries are out of order"));
        }
        Ok(Self(blocks))
    }

    /// Finds a block: its position among the pages, and its checksum.
    pub fn find(&self, rel: RelTag, block: BlockNumber) -> Option<(u64, u32)> {
        let at = self.0.binary_search_by_key(&(rel, block), |entry| (entry.rel, entry.block)).ok()?;
        Some((at as u64, self.0.get(at)?.crc))
    }
}
