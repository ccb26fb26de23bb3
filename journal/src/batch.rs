//! What a segment is made of: a header block, then batches. A batch is what one sync makes durable: some frames, each
//! a piece of one timeline's WAL. It begins at a block, is padded to whole blocks, and no block is ever written twice
//! while the segment has its number: a torn write can only hurt a batch that nobody was told of. Fields are
//! little-endian.
//!
//! | header of a segment | bytes | | header of a batch | bytes | | frame | bytes |
//! |---|---|---|---|---|---|---|---|
//! | magic | 4 | | magic | 4 | | kind | 1 |
//! | crc32c of what follows | 4 | | crc32c of what follows, but the padding | 4 | | tenant | 16 |
//! | version | 4 | | number of the segment | 8 | | shard number, count | 2 |
//! | length of the segment | 4 | | number of the batch | 8 | | timeline | 16 |
//! | number of the segment | 8 | | bytes of frames | 4 | | LSN | 8 |
//! | key | 8 | | zero | 4 | | length, bytes | 4 + |
//! | zeros | to 4,096 | | | | | | |
//!
//! Checksums of batches begin with the key of their segment, which is drawn: bytes that a user has Postgres write are
//! never taken for a batch.

use std::ops::Range;

use layer_format::FormatError;
use layer_format::bytes::Cursor;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::shard::{ShardCount, ShardNumber, TenantShardId};

/// Bytes of a block, to which all writes are aligned.
pub(crate) const BLOCK: usize = 4096;
/// Bytes of a batch's header.
pub(crate) const HEADER: usize = 32;
/// Bytes of a frame without its WAL.
pub(crate) const FRAME: usize = 47;
const SEGMENT_MAGIC: [u8; 4] = *b"PsJ1";
const BATCH_MAGIC: [u8; 4] = *b"PsJb";
const VERSION: u32 = 1;

/// A timeline of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    /// The tenant.
    pub tenant: TenantShardId,
    /// Its timeline.
    pub timeline: TimelineId,
}

/// What a frame says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// WAL from an LSN on.
    Wal,
    /// Whatever was journaled before of the WAL from this LSN on is void: it is received anew.
    Void,
}

/// A frame of a batch that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
    pub(crate) lsn: Lsn,
    /// Where its WAL is, from the beginning of the batch.
    pub(crate) wal: Range<usize>,
}

/// The header of a batch that may be one: its checksum was not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    crc: u32,
    pub(crate) segment: u64,
    pub(crate) number: u64,
    payload: u32,
}

/// What the header of a segment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    pub(crate) number: u64,
    pub(crate) len: u32,
    pub(crate) key: u64,
}

/// The first block of a segment.
pub(crate) fn segment_header(header: &SegmentHeader) -> Vec<u8> {
    let mut rest = Vec::with_capacity(BLOCK);
    rest.extend_from_slice(&VERSION.to_le_bytes());
    rest.extend_from_slice(&header.len.to_le_bytes());
    rest.extend_from_slice(&header.number.to_le_bytes());
    rest.extend_from_slice(&header.key.to_le_bytes());
    rest.resize(BLOCK - 8, 0);
    let mut block = SEGMENT_MAGIC.to_vec();
    block.extend_from_slice(&utils::crc32c::crc32c(&rest).to_le_bytes());
    block.extend_from_slice(&rest);
    block
}

/// Why a block is not the first one of a segment that this program can read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSegment {
    /// It was written by another version of the program.
    #[error("version {0} of the journal; this program knows {VERSION}")]
    Version(u32),
    /// It is not what was written.
    #[error(transparent)]
    Damaged(#[from] FormatError),
}

/// The header of the segment with this first block.
pub(crate) fn parse_segment_header(block: &[u8]) -> Result<SegmentHeader, NoSegment> {
    let mut cursor = Cursor::new(block);
    if cursor.array()? != SEGMENT_MAGIC {
        return Err(FormatError("this is no segment of a journal".to_owned()).into());
    }
    if cursor.u32()? != utils::crc32c::crc32c(cursor.rest()) {
        return Err(FormatError("checksum mismatch".to_owned()).into());
    }
    let (version, len) = (cursor.u32()?, cursor.u32()?);
    if version != VERSION {
        return Err(NoSegment::Version(version));
    }
    Ok(SegmentHeader { number: cursor.u64()?, len, key: cursor.u64()? })
}

/// Hands the bytes of a frame to `put`, which appends them to a batch.
pub(crate) fn put_frame(mut put: impl FnMut(&[u8]), id: &Id, kind: Kind, lsn: Lsn, wal: &[u8]) {
    let mut header = [0; FRAME];
    header[0] = match kind {
        Kind::Wal => 1,
        Kind::Void => 2,
    };
    header[1..17].copy_from_slice(id.tenant.tenant_id.as_bytes());
    (header[17], header[18]) = (id.tenant.shard_number.0, id.tenant.shard_count.0);
    header[19..35].copy_from_slice(id.timeline.as_bytes());
    header[35..43].copy_from_slice(&lsn.0.to_le_bytes());
    // A frame is smaller than a segment, and that is far below 4 GiB.
    header[43..].copy_from_slice(&(wal.len() as u32).to_le_bytes());
    put(&header);
    put(wal);
}

fn checksum(segment: &SegmentHeader, batch: &[u8]) -> u32 {
    utils::crc32c::crc32c_append(utils::crc32c::crc32c(&segment.key.to_le_bytes()), &batch[8..])
}

/// Writes the header of the batch that `batch` is, frames included, in front of them.
pub(crate) fn seal(batch: &mut [u8], segment: &SegmentHeader, number: u64) {
    let payload = (batch.len() - HEADER) as u32;
    batch[..4].copy_from_slice(&BATCH_MAGIC);
    batch[8..16].copy_from_slice(&segment.number.to_le_bytes());
    batch[16..24].copy_from_slice(&number.to_le_bytes());
    batch[24..28].copy_from_slice(&payload.to_le_bytes());
    batch[28..32].copy_from_slice(&[0; 4]);
    let crc = checksum(segment, batch);
    batch[4..8].copy_from_slice(&crc.to_le_bytes());
}

impl BatchHeader {
    /// The header that `block` begins with, if it may be one of `segment`.
    pub(crate) fn parse(block: &[u8], segment: u64) -> Option<Self> {
        let mut cursor = Cursor::new(block);
        let magic = cursor.array::<4>().ok()?;
        let header = Self {
            crc: cursor.u32().ok()?,
            segment: cursor.u64().ok()?,
            number: cursor.u64().ok()?,
            payload: cursor.u32().ok()?,
        };
        (magic == BATCH_MAGIC && header.segment == segment).then_some(header)
    }

    /// Bytes of the batch without its padding.
    pub(crate) fn len(&self) -> usize {
        HEADER + self.payload as usize
    }

    /// Bytes that it takes of its segment.
    pub(crate) fn padded(&self) -> usize {
        self.len().next_multiple_of(BLOCK)
    }

    /// The frames of the batch of `segment` that begins with this header.
    ///
    /// # Errors
    /// If it is not what was written.
    pub(crate) fn frames(&self, bytes: &[u8], segment: &SegmentHeader) -> Result<Vec<Frame>, FormatError> {
        let batch = bytes.get(..self.len()).ok_or_else(|| FormatError("the batch is cut off".to_owned()))?;
        if batch.len() < HEADER || checksum(segment, batch) != self.crc {
            return Err(FormatError("checksum mismatch".to_owned()));
        }
        let mut cursor = Cursor::new(&batch[HEADER..]);
        let mut frames = Vec::new();
        while !cursor.rest().is_empty() {
            let kind = match cursor.u8()? {
                1 => Kind::Wal,
                2 => Kind::Void,
                other => return Err(FormatError(format!("a frame of the unknown kind {other}"))),
            };
            let tenant = TenantShardId {
                tenant_id: TenantId::from(cursor.array::<16>()?),
                shard_number: ShardNumber(cursor.u8()?),
                shard_count: ShardCount(cursor.u8()?),
            };
            let id = Id { tenant, timeline: TimelineId::from(cursor.array::<16>()?) };
            let (lsn, len) = (Lsn(cursor.u64()?), cursor.u32()? as usize);
            let start = batch.len() - cursor.rest().len();
            cursor.take(len)?;
            frames.push(Frame { id, kind, lsn, wal: start..start + len });
        }
        Ok(frames)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SEGMENT: SegmentHeader = SegmentHeader { number: 7, len: 1 << 20, key: 0xA5 };

    fn id(number: u8) -> Id {
        let tenant = TenantShardId::unsharded(TenantId::from([number; 16]));
        Id { tenant, timeline: TimelineId::from([number ^ 0xFF; 16]) }
    }

    fn batch(frames: &[(u8, bool, u64, Vec<u8>)]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER];
        for (number, is_wal, lsn, wal) in frames {
            let kind = if *is_wal { Kind::Wal } else { Kind::Void };
            put_frame(|part| bytes.extend_from_slice(part), &id(*number), kind, Lsn(*lsn), wal);
        }
        seal(&mut bytes, &SEGMENT, 9);
        bytes
    }

    proptest! {
        #[test]
        fn a_batch_is_read_as_it_was_written(
            frames in prop::collection::vec(
                (any::<u8>(), any::<bool>(), any::<u64>(), prop::collection::vec(any::<u8>(), 0..300)), 0..9),
            flip in any::<(prop::sample::Index, u8)>(),
        ) {
            let mut bytes = batch(&frames);
            let header = BatchHeader::parse(&bytes, 7).unwrap();
            let other = SegmentHeader { key: 0xA4, ..SEGMENT };
            prop_assert!(header.frames(&bytes, &other).is_err());
            prop_assert_eq!((header.number, header.len()), (9, bytes.len()));
            prop_assert_eq!(BatchHeader::parse(&bytes, 8), None);
            let read = header.frames(&bytes, &SEGMENT).unwrap();
            prop_assert_eq!(read.len(), frames.len());
            for (frame, (number, is_wal, lsn, wal)) in read.into_iter().zip(&frames) {
                prop_assert_eq!((frame.id, frame.lsn), (id(*number), Lsn(*lsn)));
                prop_assert_eq!(frame.kind == Kind::Wal, *is_wal);
                prop_assert_eq!(&bytes[frame.wal], &wal[..]);
            }
            let at = flip.0.index(bytes.len());
            bytes[at] ^= flip.1 | 1;
            let found = BatchHeader::parse(&bytes, 7).and_then(|header| header.frames(&bytes, &SEGMENT).ok());
            prop_assert_eq!(found, None, "byte {} was changed", at);
        }

        #[test]
        fn other_bytes_are_no_batch(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = BatchHeader::parse(&bytes, 7).map(|header| header.frames(&bytes, &SEGMENT));
            let _ = parse_segment_header(&bytes);
        }
    }

    #[test]
    fn a_segment_knows_its_number() {
        let mut block = segment_header(&SEGMENT);
        assert_eq!(block.len(), BLOCK);
        assert_eq!(parse_segment_header(&block).unwrap(), SEGMENT);
        block[20] ^= 1;
        assert!(parse_segment_header(&block).unwrap_err().to_string().contains("checksum"));
    }
}
