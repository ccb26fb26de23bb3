//! The parts of a record.

use smallvec::SmallVec;

use crate::{rmgr::RmgrId, version::PgVersion};

/// Size of the fixed record header (`SizeOfXLogRecord`) in bytes.
pub const HEADER_SIZE: usize = 24;

/// Maximum size in bytes of records that servers since 16 write (`XLogRecordMaxSize`, 1020 MiB).
pub const MAX_RECORD_SIZE: u32 = 1020 * 1024 * 1024;

/// Highest block reference id (`XLR_MAX_BLOCK_ID`).
pub const MAX_BLOCK_ID: u8 = 32;

/// `XLR_SPECIAL_REL_UPDATE`: the record changes files other than through its block references.
pub const XLR_SPECIAL_REL_UPDATE: u8 = 0x01;

/// `XLR_CHECK_CONSISTENCY`: every block reference has an image of the page as it must be after replay.
pub const XLR_CHECK_CONSISTENCY: u8 = 0x02;

/// The three numbers that identify a relation's files (`RelFileLocator`; before 16, `RelFileNode`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelFile {
    /// Tablespace OID (1663 default, 1664 global).
    pub spc: u32,
    /// Database OID (0 for shared relations).
    pub db: u32,
    /// Relation file number.
    pub rel: u32,
}

/// The fixed 24-byte header of a WAL record (`XLogRecord`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    /// Length of the whole record, header included, in bytes.
    pub total_len: u32,
    /// Transaction id of the writer; 0 if none.
    pub xid: u32,
    /// LSN of the start of the previous record.
    pub prev: u64,
    /// High nibble: the resource manager's opcode; low nibble: `XLR_*` flags.
    pub info: u8,
    /// Resource manager id.
    pub rmid: u8,
    /// CRC-32C of the record.
    pub crc: u32,
}

/// Compression of a full-page image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageCompression {
    /// PostgreSQL's own LZ variant.
    Pglz,
    /// A raw LZ4 block.
    Lz4,
    /// One zstd frame.
    Zstd,
}

/// A full-page image inside a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockImage<'a> {
    /// Stored bytes: the page without its hole, compressed if `compression` is set.
    pub bytes: &'a [u8],
    /// Start of the zero-filled hole; 0 if none.
    pub hole_offset: u16,
    /// Length of the hole; 0 if none.
    pub hole_length: u16,
    /// How `bytes` is compressed.
    pub compression: Option<ImageCompression>,
    /// Whether replay must replace the page with this image (otherwise it only serves consistency checks).
    pub apply: bool,
}

/// One block reference of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRef<'a> {
    /// Block reference id, 0..=32.
    pub id: u8,
    /// Relation of the block.
    pub rel: RelFile,
    /// Fork: 0 main, 1 fsm, 2 vm, 3 init.
    pub fork: u8,
    /// Block number within the fork.
    pub blkno: u32,
    /// `BKPBLOCK_WILL_INIT`: replay starts from an all-zero page.
    pub will_init: bool,
    /// The full-page image, if any.
    pub image: Option<BlockImage<'a>>,
    /// The block's own data (empty if none).
    pub data: &'a [u8],
}

/// A decoded WAL record, borrowing from the record's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedRecord<'a> {
    /// The version that determines the record's layout.
    pub version: PgVersion,
    /// The fixed header.
    pub header: RecordHeader,
    /// Block references in ascending id order; ids may have gaps.
    pub blocks: SmallVec<[BlockRef<'a>; 4]>,
    /// Replication origin, if the record carries one.
    pub origin: Option<u16>,
    /// Top-level transaction id, if the record carries one.
    pub top_xid: Option<u32>,
    /// Main data.
    pub main_data: &'a [u8],
}

impl RecordHeader {
    /// The resource manager.
    #[inline]
    pub const fn rmgr(&self) -> RmgrId {
        RmgrId(self.rmid)
    }

    /// The resource manager's opcode and flags: `info` with its low nibble cleared.
    #[inline]
    pub const fn opcode(&self) -> u8 {
        self.info & 0xF0
    }

    /// Whether this is `XLOG_SWITCH`, after which the rest of the segment is unused.
    #[inline]
    pub const fn is_switch(&self) -> bool {
        self.rmid == RmgrId::XLOG.0 && self.opcode() == 0x40
    }

    /// Whether this is `XLOG_FPI_FOR_HINT`: an image of a page whose hints changed, or without an image just that
    /// notice.
    #[inline]
    pub const fn is_hint(&self) -> bool {
        self.rmid == RmgrId::XLOG.0 && self.opcode() == crate::xlog::op::FPI_FOR_HINT
    }

    /// Whether this is `XLOG_FPI`: images of pages and nothing else.
    #[inline]
    pub const fn is_images(&self) -> bool {
        self.rmid == RmgrId::XLOG.0 && self.opcode() == crate::xlog::op::FPI
    }

    /// The record's name, e.g. `Heap/INSERT+INIT`.
    pub fn name(&self, version: PgVersion) -> &'static str {
        crate::rmgr::record_name(version, self.rmgr(), self.info)
    }
}

impl<'a> DecodedRecord<'a> {
    /// The block reference with id `id`, if present.
    #[inline]
    pub fn block(&self, id: u8) -> Option<&BlockRef<'a>> {
        self.blocks.iter().find(|b| b.id == id)
    }
}
