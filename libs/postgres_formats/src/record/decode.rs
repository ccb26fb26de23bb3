//! Record bytes to [`DecodedRecord`] (`DecodeXLogRecord`), with every check that the server makes and those that
//! protect what reads the result: image bounds, known forks, known image flags.

use smallvec::SmallVec;
use thiserror::Error;

use super::{BlockImage, BlockRef, DecodedRecord, HeaderError, ImageCompression, MAX_BLOCK_ID, RecordHeader, RelFile};
use crate::{
    BLCKSZ,
    cursor::{Cursor, Truncated},
    version::PgVersion,
};

pub(super) const ID_SHORT_MAIN: u8 = 255;
pub(super) const ID_LONG_MAIN: u8 = 254;
pub(super) const ID_ORIGIN: u8 = 253;
pub(super) const ID_TOP_XID: u8 = 252;

pub(super) const FORK_MASK: u8 = 0x0F;
pub(super) const HAS_IMAGE: u8 = 0x10;
pub(super) const HAS_DATA: u8 = 0x20;
pub(super) const WILL_INIT: u8 = 0x40;
pub(super) const SAME_REL: u8 = 0x80;

const MAX_FORK: u8 = 3;

/// What is wrong with a record. A record whose CRC is right gives none of these unless its writer was broken or its
/// version is not the one that was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The fixed header is wrong.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The bytes given are not exactly one record.
    #[error("record of {total_len} bytes given as {len} bytes")]
    Length {
        /// `xl_tot_len`.
        total_len: u32,
        /// Number of bytes given.
        len: usize,
    },
    /// A fragment header or its payload goes beyond the record.
    #[error("record ends too early: {0}")]
    Truncated(#[from] Truncated),
    /// Payload lengths do not add up to the record's length.
    #[error("{announced} bytes of payload announced, but {left} bytes are left")]
    PayloadLength {
        /// Sum of the announced lengths.
        announced: usize,
        /// Bytes behind the fragment headers.
        left: usize,
    },
    /// A fragment id that has no meaning.
    #[error("invalid fragment id {0}")]
    FragmentId(u8),
    /// Block reference ids must ascend.
    #[error("block reference {0} is out of order or duplicate")]
    BlockOrder(u8),
    /// A fork that does not exist.
    #[error("block reference {id}: unknown fork {fork}")]
    Fork {
        /// Block reference id.
        id: u8,
        /// Fork number.
        fork: u8,
    },
    /// `BKPBLOCK_HAS_DATA` and the data length contradict each other.
    #[error("block reference {id}: data flag contradicts data length {data_len}")]
    DataFlag {
        /// Block reference id.
        id: u8,
        /// Data length in bytes.
        data_len: u16,
    },
    /// `BKPBLOCK_SAME_REL` in the first block reference.
    #[error("block reference {0}: same relation as the previous one, but there is none")]
    NoPreviousRel(u8),
    /// Image flags unknown in this version, or more than one compression method.
    #[error("block reference {id}: invalid image flags {info:#04x}")]
    ImageFlags {
        /// Block reference id.
        id: u8,
        /// `bimg_info`.
        info: u8,
    },
    /// Length, hole, and compression of an image contradict each other.
    #[error("block reference {id}: image of {len} bytes with hole {hole_offset}+{hole_length} is impossible")]
    ImageShape {
        /// Block reference id.
        id: u8,
        /// Stored length in bytes.
        len: u16,
        /// Start of the hole.
        hole_offset: u16,
        /// Length of the hole.
        hole_length: u16,
    },
}

/// Meaning of `bimg_info` bits; they moved in 15.
pub(super) struct ImageFlags {
    pub(super) has_hole: u8,
    pub(super) apply: u8,
    pub(super) compression: &'static [(u8, ImageCompression)],
}

impl ImageFlags {
    pub(super) const fn of(version: PgVersion) -> Self {
        use ImageCompression::{Lz4, Pglz, Zstd};
        match version {
            PgVersion::V14 => Self { has_hole: 0x01, apply: 0x04, compression: &[(0x02, Pglz)] },
            _ => Self { has_hole: 0x01, apply: 0x02, compression: &[(0x04, Pglz), (0x08, Lz4), (0x10, Zstd)] },
        }
    }

    /// The compression that `info` names; `Err` if it has unknown bits or names more than one.
    fn compression(&self, info: u8) -> Result<Option<ImageCompression>, ()> {
        let bits = info & !(self.has_hole | self.apply);
        if bits == 0 {
            return Ok(None);
        }
        self.compression.iter().find(|(bit, _)| *bit == bits).map(|(_, method)| Some(*method)).ok_or(())
    }
}

/// Where a block's payload will be, once its place is known.
struct BlockHeader<'a> {
    block: BlockRef<'a>,
    image_len: usize,
    data_len: usize,
}

/// Everything that the fragment headers say.
#[derive(Default)]
struct Fragments<'a> {
    blocks: SmallVec<[BlockHeader<'a>; 4]>,
    origin: Option<u16>,
    top_xid: Option<u32>,
    main_len: usize,
    announced: usize,
}

/// Decodes one whole record of `version`. The CRC is not looked at: see [`check_crc`](super::check_crc).
///
/// `bytes` must be exactly the record, without alignment padding behind it.
pub fn decode(version: PgVersion, bytes: &[u8]) -> Result<DecodedRecord<'_>, RecordError> {
    let header = RecordHeader::parse(version, bytes)?;
    if header.total_len as usize != bytes.len() {
        return Err(RecordError::Length { total_len: header.total_len, len: bytes.len() });
    }
    let mut cursor = Cursor::new(bytes);
    cursor.skip(super::HEADER_SIZE)?;
    let fragments = read_fragments(version, &mut cursor)?;
    let mut blocks = SmallVec::with_capacity(fragments.blocks.len());
    for BlockHeader { mut block, image_len, data_len } in fragments.blocks {
        if let Some(image) = &mut block.image {
            image.bytes = cursor.take(image_len)?;
        }
        block.data = cursor.take(data_len)?;
        blocks.push(block);
    }
    let main_data = cursor.take(fragments.main_len)?;
    Ok(DecodedRecord { version, header, blocks, origin: fragments.origin, top_xid: fragments.top_xid, main_data })
}

/// Reads fragment headers until the rest of the record is exactly the payload that they announced.
fn read_fragments<'a>(version: PgVersion, cursor: &mut Cursor<'a>) -> Result<Fragments<'a>, RecordError> {
    let mut fragments = Fragments::default();
    while cursor.remaining() > fragments.announced {
        match cursor.u8()? {
            ID_SHORT_MAIN => {
                fragments.main_len = usize::from(cursor.u8()?);
                fragments.announced += fragments.main_len;
                break;
            }
            ID_LONG_MAIN => {
                fragments.main_len = cursor.u32()? as usize;
                fragments.announced = fragments.announced.saturating_add(fragments.main_len);
                break;
            }
            ID_ORIGIN => fragments.origin = Some(cursor.u16()?),
            ID_TOP_XID => fragments.top_xid = Some(cursor.u32()?),
            id @ 0..=MAX_BLOCK_ID => read_block_header(version, id, cursor, &mut fragments)?,
            id => return Err(RecordError::FragmentId(id)),
        }
    }
    let (announced, left) = (fragments.announced, cursor.remaining());
    if announced == left { Ok(fragments) } else { Err(RecordError::PayloadLength { announced, left }) }
}

fn read_block_header<'a>(
    version: PgVersion,
    id: u8,
    cursor: &mut Cursor<'a>,
    fragments: &mut Fragments<'a>,
) -> Result<(), RecordError> {
    let previous = fragments.blocks.last().map(|b| b.block);
    if previous.is_some_and(|p| id <= p.id) {
        return Err(RecordError::BlockOrder(id));
    }
    let (flags, data_len) = (cursor.u8()?, cursor.u16()?);
    let fork = flags & FORK_MASK;
    if fork > MAX_FORK {
        return Err(RecordError::Fork { id, fork });
    }
    if (flags & HAS_DATA != 0) != (data_len != 0) {
        return Err(RecordError::DataFlag { id, data_len });
    }
    let (image, image_len) = match flags & HAS_IMAGE != 0 {
        true => read_image_header(version, id, cursor).map(|(image, len)| (Some(image), usize::from(len)))?,
        false => (None, 0),
    };
    let rel = match flags & SAME_REL != 0 {
        true => previous.ok_or(RecordError::NoPreviousRel(id))?.rel,
        false => RelFile { spc: cursor.u32()?, db: cursor.u32()?, rel: cursor.u32()? },
    };
    let (blkno, will_init, data_len) = (cursor.u32()?, flags & WILL_INIT != 0, usize::from(data_len));
    let block = BlockRef { id, rel, fork, blkno, will_init, image, data: &[] };
    fragments.announced += image_len + data_len;
    fragments.blocks.push(BlockHeader { block, image_len, data_len });
    Ok(())
}

/// Reads an image header; the image's bytes are filled in later. Also gives their length.
fn read_image_header<'a>(
    version: PgVersion,
    id: u8,
    cursor: &mut Cursor<'a>,
) -> Result<(BlockImage<'a>, u16), RecordError> {
    let (len, hole_offset, info) = (cursor.u16()?, cursor.u16()?, cursor.u8()?);
    let flags = ImageFlags::of(version);
    let compression = flags.compression(info).map_err(|()| RecordError::ImageFlags { id, info })?;
    let has_hole = info & flags.has_hole != 0;
    let page = BLCKSZ as u16;
    let hole_length = match compression {
        Some(_) if has_hole => cursor.u16()?,
        Some(_) => 0,
        None => page.saturating_sub(len),
    };
    let hole_fits = match has_hole {
        true => hole_offset > 0 && hole_length > 0 && len < page && hole_offset <= page.saturating_sub(hole_length),
        false => hole_offset == 0 && hole_length == 0,
    };
    let length_fits = match compression {
        Some(_) => len < page,
        None => usize::from(len) + usize::from(hole_length) == BLCKSZ,
    };
    if !hole_fits || !length_fits {
        return Err(RecordError::ImageShape { id, len, hole_offset, hole_length });
    }
    let apply = info & flags.apply != 0;
    Ok((BlockImage { bytes: &[], hole_offset, hole_length, compression, apply }, len))
}
