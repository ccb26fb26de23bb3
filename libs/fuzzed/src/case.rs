//! A fuzz input: page and record in a form that stays valid when a fuzzer changes, cuts or joins it. Missing bytes at
//! the end are zero or empty.

use postgres_formats::page::{PageBytes, PageRef};
use postgres_formats::record::{BlockImage, BlockRef, DecodedRecord, ImageCompression, RecordHeader, RelFile};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;
use redo::RedoContext;

/// `flags` of a block.
mod flag {
    pub(super) const FORK: u8 = 0x03;
    pub(super) const WILL_INIT: u8 = 0x04;
    pub(super) const IMAGE: u8 = 0x08;
    pub(super) const APPLY: u8 = 0x10;
    pub(super) const COMPRESSION_SHIFT: u32 = 5;
}

/// A parsed input; slices are parts of it.
pub struct Case<'a> {
    version: u8,
    settings: u8,
    info: u8,
    /// Which of the blocks is the page.
    own: u8,
    blocks: Vec<Block>,
    hole: (u16, u16),
    main: &'a [u8],
    /// The own block's data, or its image if it has one.
    data: &'a [u8],
    image: &'a [u8],
    /// The page before its hole, and after it.
    head: &'a [u8],
    tail: &'a [u8],
}

struct Block {
    id: u8,
    flags: u8,
    blkno: u32,
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn u8(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes([self.u8(), self.u8()])
    }

    fn u32(&mut self) -> u32 {
        u32::from(self.u16()) | u32::from(self.u16()) << 16
    }

    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn part(&mut self) -> &'a [u8] {
        let len = self.u16();
        self.take(len.into())
    }
}

impl<'a> Case<'a> {
    pub(crate) fn read(input: &'a [u8]) -> Option<Self> {
        let mut input = Input(input);
        let (version, settings, info, own) = (input.u8(), input.u8(), input.u8(), input.u8());
        let count = input.u8() % 7;
        let blocks = (0..count).map(|_| Block { id: input.u8() % 33, flags: input.u8(), blkno: input.u32() }).collect();
        let hole = (input.u16(), input.u16());
        let (main, data, image, head) = (input.part(), input.part(), input.part(), input.part());
        let tail = input.take(8192usize.saturating_sub(head.len()));
        Some(Self { version, settings, info, own, blocks, hole, main, data, image, head, tail }).filter(|_| count > 0)
    }

    pub(crate) fn page(&self) -> Box<PageBytes> {
        let mut page = Box::new([0; 8192]);
        page.iter_mut().zip(self.head).for_each(|(to, from)| *to = *from);
        page.iter_mut().rev().zip(self.tail.iter().rev()).for_each(|(to, from)| *to = *from);
        page
    }

    /// Calls `then` with the record, as one of `rmgr`, and the id of the page's block.
    pub(crate) fn with_record(&self, rmgr: RmgrId, then: impl FnOnce(&RedoContext, &DecodedRecord<'_>, u8)) {
        let version = PgVersion::ALL[usize::from(self.version) % PgVersion::ALL.len()];
        let own = usize::from(self.own) % self.blocks.len();
        let blocks = self.blocks.iter().enumerate().map(|(i, block)| self.block(block, i == own)).collect();
        let header = RecordHeader { total_len: 0, xid: 700, prev: 0, info: self.info, rmid: rmgr.0, crc: 0 };
        let record = DecodedRecord { version, header, blocks, origin: None, top_xid: None, main_data: self.main };
        let ctx =
            RedoContext { version, data_checksums: self.settings & 1 != 0, wal_log_hints: self.settings & 2 != 0 };
        then(&ctx, &record, self.blocks[own].id);
    }

    fn block(&self, block: &Block, is_own: bool) -> BlockRef<'_> {
        let compression = match block.flags >> flag::COMPRESSION_SHIFT {
            1 => Some(ImageCompression::Pglz),
            2 => Some(ImageCompression::Lz4),
            3 => Some(ImageCompression::Zstd),
            _ => None,
        };
        let image = BlockImage {
            bytes: self.image,
            hole_offset: self.hole.0,
            hole_length: self.hole.1,
            compression,
            apply: block.flags & flag::APPLY != 0,
        };
        BlockRef {
            id: block.id,
            rel: RelFile { spc: 1663, db: 5, rel: 16384 },
            fork: block.flags & flag::FORK,
            blkno: block.blkno,
            will_init: block.flags & flag::WILL_INIT != 0,
            image: Some(image).filter(|_| is_own && block.flags & flag::IMAGE != 0),
            data: if is_own { self.data } else { &[] },
        }
    }

    /// The input that parses as block `own` of `record` and its page.
    pub fn write(ctx: &RedoContext, record: &DecodedRecord<'_>, own: &BlockRef<'_>, page: &PageBytes) -> Vec<u8> {
        let version = PgVersion::ALL.iter().position(|version| *version == ctx.version).unwrap_or(0);
        let settings = u8::from(ctx.data_checksums) | u8::from(ctx.wal_log_hints) << 1;
        let mut blocks: Vec<_> = record.blocks.iter().filter(|block| block.id != own.id).take(5).collect();
        blocks.insert(0, own);
        let mut out = vec![version as u8, settings, record.header.info, 0, blocks.len() as u8];
        for block in blocks {
            out.extend_from_slice(&[block.id, flags_of(block)]);
            out.extend_from_slice(&block.blkno.to_le_bytes());
        }
        let hole = own.image.map_or((0, 0), |image| (image.hole_offset, image.hole_length));
        out.extend_from_slice(&hole.0.to_le_bytes());
        out.extend_from_slice(&hole.1.to_le_bytes());
        let (lower, upper) = bounds_of_hole(page);
        let image = own.image.map_or(&[][..], |image| image.bytes);
        for part in [record.main_data, own.data, image, &page[..lower]] {
            let len = u16::try_from(part.len()).unwrap_or(u16::MAX);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&part[..len.into()]);
        }
        out.extend_from_slice(&page[upper..]);
        out
    }
}

fn flags_of(block: &BlockRef<'_>) -> u8 {
    let on = |on: bool, flag: u8| if on { flag } else { 0 };
    let compression = match block.image.and_then(|image| image.compression) {
        None => 0,
        Some(ImageCompression::Pglz) => 1,
        Some(ImageCompression::Lz4) => 2,
        Some(ImageCompression::Zstd) => 3u8,
    };
    block.fork & flag::FORK
        | on(block.will_init, flag::WILL_INIT)
        | on(block.image.is_some(), flag::IMAGE)
        | on(block.image.is_some_and(|image| image.apply), flag::APPLY)
        | compression << flag::COMPRESSION_SHIFT
}

/// Start and end of the zeros in the middle of the page.
fn bounds_of_hole(page: &PageBytes) -> (usize, usize) {
    let header = PageRef::new(page);
    let (lower, upper) = (usize::from(header.lower()), usize::from(header.upper()));
    let is_hole = lower <= upper && page.get(lower..upper).is_some_and(|hole| hole.iter().all(|byte| *byte == 0));
    if is_hole { (lower, upper) } else { (page.len(), page.len()) }
}
