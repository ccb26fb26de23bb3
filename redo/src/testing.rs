//! Hand-made records for unit tests.

use postgres_formats::page::{PageBytes, PageMut};
use postgres_formats::record::{BlockImage, BlockRef, DecodedRecord, ImageCompression, RecordHeader, RelFile};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;

use crate::{Applied, RedoContext, RedoError, apply_record};

/// LSN of the end of all sample records.
pub(crate) const END: u64 = 0x1_0000_2000;
/// Transaction of all sample records.
pub(crate) const XID: u32 = 700;

/// A record whose parts can be set directly.
pub(crate) struct Sample<'a> {
    pub(crate) ctx: RedoContext,
    pub(crate) rmgr: RmgrId,
    pub(crate) info: u8,
    pub(crate) main: Vec<u8>,
    pub(crate) blocks: Vec<BlockRef<'a>>,
}

/// Settings of a server of version 15 without checksums.
pub(crate) const V15: RedoContext = context(PgVersion::V15);

pub(crate) const fn context(version: PgVersion) -> RedoContext {
    RedoContext { version, data_checksums: false, wal_log_hints: false }
}

impl<'a> Sample<'a> {
    pub(crate) fn new(rmgr: RmgrId, info: u8, main: &[u8]) -> Self {
        Self { ctx: V15, rmgr, info, main: main.to_vec(), blocks: Vec::new() }
    }

    pub(crate) fn version(mut self, version: PgVersion) -> Self {
        self.ctx.version = version;
        self
    }

    /// Adds a block of the main fork.
    pub(crate) fn block(mut self, id: u8, blkno: u32, data: &'a [u8]) -> Self {
        let rel = RelFile { spc: 1663, db: 5, rel: 16384 };
        self.blocks.push(BlockRef { id, rel, fork: 0, blkno, will_init: false, image: None, data });
        self
    }

    /// Adds a block of the visibility map.
    pub(crate) fn vm(self, id: u8, blkno: u32) -> Self {
        let mut sample = self.block(id, blkno, &[]);
        sample.last().fork = 2;
        sample
    }

    /// The last block's page is initialized by the record.
    pub(crate) fn will_init(mut self) -> Self {
        self.last().will_init = true;
        self
    }

    /// Gives the last block an image.
    pub(crate) fn image(mut self, page: &'a PageBytes, apply: bool) -> Self {
        let image = BlockImage { bytes: page, hole_offset: 0, hole_length: 0, compression: None, apply };
        self.last().image = Some(image);
        self
    }

    fn last(&mut self) -> &mut BlockRef<'a> {
        self.blocks.last_mut().expect("a block was added")
    }

    /// Gives the last block an image of damaged pglz data.
    pub(crate) fn compressed_image(mut self, bytes: &'a [u8]) -> Self {
        let compression = Some(ImageCompression::Pglz);
        self.last().image = Some(BlockImage { bytes, hole_offset: 0, hole_length: 0, compression, apply: true });
        self
    }

    /// Applies the record to a page of one of its blocks.
    pub(crate) fn apply(&self, id: u8, page: &mut PageBytes) -> Result<Applied, RedoError> {
        self.with_record(|record| apply_record(&self.ctx, page, record, id, END))
    }

    /// Calls `then` with the record.
    pub(crate) fn with_record<R>(&self, then: impl FnOnce(&DecodedRecord<'_>) -> R) -> R {
        let header = RecordHeader { total_len: 100, xid: XID, prev: 1, info: self.info, rmid: self.rmgr.0, crc: 0 };
        let blocks = self.blocks.iter().copied().collect();
        let record = DecodedRecord {
            version: self.ctx.version,
            header,
            blocks,
            origin: None,
            top_xid: None,
            main_data: &self.main,
        };
        then(&record)
    }

    /// As [`apply`](Self::apply), but asserts that it changes the page and sets its LSN.
    pub(crate) fn changes(&self, id: u8, page: &mut PageBytes) {
        let applied = self.apply(id, page).unwrap();
        assert_eq!((applied, PageMut::new(page).lsn()), (Applied::Changed, END));
    }
}

/// An initialized page with unpadded items.
pub(crate) fn page_with(special: u16, items: &[&[u8]]) -> Box<PageBytes> {
    let mut bytes = Box::new([0; 8192]);
    let mut page = PageMut::new(&mut *bytes);
    page.init(special);
    for (item, offset) in items.iter().zip(1..) {
        page.insert_item(item, offset).unwrap();
    }
    bytes
}

/// All items of a page, all of which must have storage.
pub(crate) fn items(page: &PageBytes) -> Vec<Vec<u8>> {
    let page = postgres_formats::page::PageRef::new(page);
    (1..=page.max_offset()).map(|offset| page.item(offset).unwrap().to_vec()).collect()
}

/// Concatenates the bytes of a record's fields.
pub(crate) fn bytes(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}
