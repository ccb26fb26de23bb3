//! Block 0 of a layer file: what the file contains and to whom it belongs.

use pageserver_api::key::{KEY_SIZE, Key};
use std::ops::Range;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::shard::{ShardCount, ShardNumber, TenantShardId};

use crate::FormatError;
use crate::block::{BLOCK_SIZE, ENVELOPE_FILE_ID, FileId, open, seal};
use crate::bytes::Cursor;

/// First bytes of every layer file.
pub const MAGIC: [u8; 8] = *b"PSLAYER\n";
/// Version of the format written here. Files of version 1 have no filter.
pub const FORMAT_VERSION: u16 = 2;
/// The oldest readable version.
pub const OLDEST_VERSION: u16 = 1;

/// The kind of a layer file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LayerKind {
    /// Values (images and records) by key and LSN.
    Delta = 1,
    /// Images by key at one LSN.
    Image = 2,
}

impl LayerKind {
    fn from_number(number: u8) -> Result<Self, FormatError> {
        match number {
            1 => Ok(LayerKind::Delta),
            2 => Ok(LayerKind::Image),
            other => Err(FormatError::new(format!("unknown layer kind {other}"))),
        }
    }
}

/// The header of a layer file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Delta or image.
    pub kind: LayerKind,
    /// Generation of the process that wrote the file.
    pub generation: u32,
    /// Seeds the checksums of the other blocks.
    pub file_id: FileId,
    /// The tenant that owns the file.
    pub tenant_shard_id: TenantShardId,
    /// The timeline that owns the file.
    pub timeline_id: TimelineId,
    /// Keys covered, end exclusive.
    pub key_range: Range<Key>,
    /// LSNs covered, end exclusive.
    pub lsn_range: Range<Lsn>,
}

impl Header {
    /// Encodes block 0.
    pub fn encode(&self) -> [u8; BLOCK_SIZE] {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        out.push(self.kind as u8);
        out.push(0);
        out.extend_from_slice(&self.generation.to_le_bytes());
        out.extend_from_slice(&self.file_id.0.to_le_bytes());
        out.extend_from_slice(self.tenant_shard_id.tenant_id.as_bytes());
        out.push(self.tenant_shard_id.shard_number.0);
        out.push(self.tenant_shard_id.shard_count.0);
        out.extend_from_slice(self.timeline_id.as_bytes());
        out.extend_from_slice(&self.key_range.start.to_bytes());
        out.extend_from_slice(&self.key_range.end.to_bytes());
        out.extend_from_slice(&self.lsn_range.start.0.to_le_bytes());
        out.extend_from_slice(&self.lsn_range.end.0.to_le_bytes());
        seal(ENVELOPE_FILE_ID, 0, &out)
    }

    /// Decodes the header from block 0.
    pub fn decode(block: &[u8]) -> Result<Self, FormatError> {
        if block.get(..MAGIC.len()) != Some(&MAGIC) {
            return Err(FormatError::new("not a layer file: wrong magic"));
        }
        let mut cursor = Cursor::new(open(ENVELOPE_FILE_ID, 0, block)?);
        cursor.take(MAGIC.len())?;
        let version = cursor.u16()?;
        if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&version) {
            return Err(FormatError::new(format!(
                "format version {version}, this program reads {OLDEST_VERSION} to {FORMAT_VERSION}"
            )));
        }
        let kind = LayerKind::from_number(cursor.u8()?)?;
        cursor.u8()?;
        let header = Header {
            kind,
            generation: cursor.u32()?,
            file_id: FileId(cursor.u64()?),
            tenant_shard_id: TenantShardId {
                tenant_id: TenantId::from(cursor.array::<16>()?),
                shard_number: ShardNumber(cursor.u8()?),
                shard_count: ShardCount(cursor.u8()?),
            },
            timeline_id: TimelineId::from(cursor.array::<16>()?),
            key_range: key(&mut cursor)?..key(&mut cursor)?,
            lsn_range: Lsn(cursor.u64()?)..Lsn(cursor.u64()?),
        };
        cursor.expect_zeros()?;
        Ok(header)
    }
}

fn key(cursor: &mut Cursor<'_>) -> Result<Key, FormatError> {
    Ok(Key::from_bytes(&cursor.array::<KEY_SIZE>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_refusals() {
        let header = Header {
            kind: LayerKind::Delta,
            generation: 3,
            file_id: FileId(0x1234),
            tenant_shard_id: TenantShardId::unsharded(TenantId::from([1; 16])),
            timeline_id: TimelineId::from([2; 16]),
            key_range: Key::MIN..Key::MAX,
            lsn_range: Lsn(16)..Lsn(99),
        };
        let block = header.encode();
        assert_eq!(Header::decode(&block).unwrap(), header);
        for at in 0..BLOCK_SIZE {
            let mut damaged = block;
            damaged[at] ^= 0x10;
            assert!(Header::decode(&damaged).is_err(), "byte {at}");
        }
        assert!(Header::decode(&block[..100]).is_err());
    }
}
