//! Decodes record bytes to [`DecodedRecord`] (`DecodeXLogRecord`), with every check that the server makes and those
//! that protect users of the result: image bounds, known forks, known image flags.

use smallvec::SmallVec;
use thiserror::Error;

use super::decoded::{
    BlockImage, BlockRef, DecodedRecord, HEADER_SIZE, ImageCompression, MAX_BLOCK_ID, RecordHeader, RelFile,
};
use super::header::HeaderError;
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

/// What is wrong with a record. A record with a valid CRC yields none of these unless its writer was broken or the
/// given version is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RecordError {
    /// The fixed header is invalid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The bytes passed are not exactly one record.
    #[error("record of {total_len} bytes given as {len} bytes")]
    Length {
        /// `xl_tot_len`.
        total_len: u32,
        /// Number of bytes passed.
        len: usize,
    },
    /// A fragment header or its payload extends beyond the record.
    #[error("record ends too early: {0}")]
    Truncated(#[from] Truncated),
    /// Payload lengths do not add up to the record's length.
    #[error("{announced} bytes of payload announced, but {left} bytes are left")]
    PayloadLength {
        /// Sum of the announced lengths.
        announced: usize,
        /// Bytes after the fragment headers.
        left: usize,
    },
    /// An unknown fragment id.
    #[error("invalid fragment id {0}")]
    FragmentId(u8),
    /// Block reference ids are not ascending.
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

/// The `bimg_info` bits; they moved in 15.
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

/// Lengths of a block's image and data, whose position is known only after the last fragment header.
#[derive(Clone, Copy)]
struct PayloadLens {
    image: u16,
    data: u16,
}

/// Decodes one whole record of `version`. The CRC is not checked: see [`check_crc`](super::check_crc).
///
/// `bytes` must be exactly the record, without trailing alignment padding.
pub fn decode(version: PgVersion, bytes: &[u8]) -> Result<DecodedRecord<'_>, RecordError> {
    let mut rec = DecodedRecord::nothing(version);
    decode_into(&mut rec, bytes)?;
    Ok(rec)
}

impl<'a> DecodedRecord<'a> {
    /// An empty record of `version`, to decode into.
    #[inline]
    pub fn nothing(version: PgVersion) -> Self {
        let header = RecordHeader { total_len: 0, xid: 0, prev: 0, info: 0, rmid: 0, crc: 0 };
        Self { version, header, blocks: SmallVec::new(), origin: None, top_xid: None, main_data: &[] }
    }
}

/// As [`decode`], into a record made by [`DecodedRecord::nothing`], so that the decoded record, which is large, need
/// not be moved.
pub fn decode_into<'a>(rec: &mut DecodedRecord<'a>, bytes: &'a [u8]) -> Result<(), RecordError> {
    rec.header = RecordHeader::parse(rec.version, bytes)?;
    if rec.header.total_len as usize != bytes.len() {
        return Err(RecordError::Length { total_len: rec.header.total_len, len: bytes.len() });
    }
    let mut cursor = Cursor::new(bytes);
    cursor.skip(HEADER_SIZE)?;
    let mut fragments = Fragments { rec, lens: SmallVec::new(), main_len: 0, announced: 0 };
    read_fragments(&mut cursor, &mut fragments)?;
    for (block, lens) in fragments.rec.blocks.iter_mut().zip(&fragments.lens) {
        if let Some(image) = &mut block.image {
            image.bytes = cursor.take(lens.image.into())?;
        }
        block.data = cursor.take(lens.data.into())?;
    }
    fragments.rec.main_data = cursor.take(fragments.main_len)?;
    Ok(())
}

/// The content of the fragment headers: the record without its payload, and the lengths of the payload's parts.
struct Fragments<'r, 'a> {
    rec: &'r mut DecodedRecord<'a>,
    lens: SmallVec<[PayloadLens; 4]>,
    main_len: usize,
    announced: usize,
}

/// Reads fragment headers until the rest of the record is exactly the announced payload.
fn read_fragments<'a>(cursor: &mut Cursor<'a>, fragments: &mut Fragments<'_, 'a>) -> Result<(), RecordError> {
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
            ID_ORIGIN => fragments.rec.origin = Some(cursor.u16()?),
            ID_TOP_XID => fragments.rec.top_xid = Some(cursor.u32()?),
            id @ 0..=MAX_BLOCK_ID => read_block_header(id, cursor, fragments)?,
            id => return Err(RecordError::FragmentId(id)),
        }
    }
    let (announced, left) = (fragments.announced, cursor.remaining());
    if announced == left { Ok(()) } else { Err(RecordError::PayloadLength { announced, left }) }
}

fn read_block_header<'a>(
    id: u8,
    cursor: &mut Cursor<'a>,
    fragments: &mut Fragments<'_, 'a>,
) -> Result<(), RecordError> {
    let version = fragments.rec.version;
    let previous = fragments.rec.blocks.last().map(|block| (block.id, block.rel));
    if previous.is_some_and(|(previous, _)| id <= previous) {
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
        true => read_image_header(version, id, cursor).map(|(image, len)| (Some(image), len))?,
        false => (None, 0),
    };
    let rel = match flags & SAME_REL != 0 {
        true => previous.ok_or(RecordError::NoPreviousRel(id))?.1,
        false => RelFile { spc: cursor.u32()?, db: cursor.u32()?, rel: cursor.u32()? },
    };
    let (blkno, will_init) = (cursor.u32()?, flags & WILL_INIT != 0);
    fragments.announced += usize::from(image_len) + usize::from(data_len);
    fragments.lens.push(PayloadLens { image: image_len, data: data_len });
    fragments.rec.blocks.push(BlockRef { id, rel, fork, blkno, will_init, image, data: &[] });
    Ok(())
}

/// Reads an image header; the image's bytes are filled in later. Also returns their length.
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
