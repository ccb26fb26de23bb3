//! What is written: changes of pages in several orders, and what each page must be afterwards.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pageserver_api::key::{Key, rel_block_key};
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::RelTag;
use pageserver_api::value::Value;
use postgres_formats::page::PageMut;
use postgres_formats::record::{BlockRef, DecodedRecord, RecordHeader, RelFile, reduce_to_block};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;

use crate::zipf::{Zipf, mixed};

pub const PAGE: usize = 8192;
/// `XLOG_HEAP_INPLACE`: it may be repeated without end.
const INPLACE: u8 = 0x70;
/// The tuple that is changed, its header of 24 bytes, and its data.
const TUPLE: usize = 120;
const DATA: usize = TUPLE - 24;
const REL: RelTag = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 };
/// WAL between checkpoints, after which a page's next change is logged as an image, if at all.
const CHECKPOINT: u64 = 256 << 20;
const HOT_PAGES: u32 = 64;

/// In which order pages change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Every page is as likely as any other.
    Uniform,
    /// Zipf's law with exponent 0.99.
    Zipf,
    /// The same, with an image of a page at its first change after a checkpoint.
    ZipfWithImages,
    /// New pages, one after the other, as a bulk load writes them.
    Append,
    /// A few pages change all the time.
    Hot,
}

impl Order {
    pub const ALL: [Self; 5] = [Self::Uniform, Self::Zipf, Self::ZipfWithImages, Self::Append, Self::Hot];

    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf 0.99",
            Self::ZipfWithImages => "zipf 0.99, full page writes",
            Self::Append => "append",
            Self::Hot => "64 hot pages",
        }
    }
}

/// The load of one run.
#[derive(Debug)]
pub struct Load {
    pub order: Order,
    /// Pages of the import.
    pages: u32,
    zipf: Zipf,
    /// For each page the LSN of its last change that is complete; 0 if it does not exist.
    written: Vec<AtomicU64>,
    /// For each page the checkpoint after which it was logged as an image.
    imaged: Vec<u64>,
}

/// A change of one page.
pub struct Change {
    pub key: Key,
    pub block: u32,
    pub value: Value,
    /// Bytes of the value.
    pub len: u64,
}

impl Load {
    /// `more` is the number of pages that are appended at most.
    pub fn new(order: Order, pages: u32, more: u32, import: Lsn) -> Self {
        let there = (0..pages).map(|_| AtomicU64::new(import.0));
        let written = there.chain((0..more).map(|_| AtomicU64::new(0))).collect();
        Self { order, pages, zipf: Zipf::new(pages), written, imaged: vec![0; (pages + more) as usize] }
    }

    /// Change number `number`, at `lsn`.
    pub fn change(&mut self, number: u64, lsn: Lsn) -> Change {
        let block = match self.order {
            Order::Append => self.pages + number as u32,
            _ => self.pick(mixed(number)),
        };
        let checkpoint = 1 + lsn.0 / CHECKPOINT;
        let is_image = match self.order {
            Order::Append => true,
            Order::ZipfWithImages => {
                self.imaged.get_mut(block as usize).is_some_and(|last| std::mem::replace(last, checkpoint) < checkpoint)
            }
            _ => false,
        };
        let key = rel_block_key(REL, block);
        if is_image {
            return Change { key, block, value: Value::Image(page(block, lsn)), len: PAGE as u64 };
        }
        let record = inplace(block, lsn);
        let len = record.len() as u64;
        Change {
            key,
            block,
            value: Value::WalRecord(WalRecord::Postgres { will_init: false, block_id: 0, record }),
            len,
        }
    }

    fn pick(&self, chance: u64) -> u32 {
        match self.order {
            Order::Zipf | Order::ZipfWithImages => self.zipf.draw(chance),
            Order::Hot => chance as u32 % HOT_PAGES,
            Order::Uniform | Order::Append => chance as u32 & (self.pages - 1),
        }
    }

    /// A page to read: half of the time one as those that are written, else any.
    pub fn page_to_read(&self, chance: u64, written: u32) -> u32 {
        match (chance & 1, self.order) {
            (0, Order::Append) if written > 0 => self.pages + (chance >> 8) as u32 % written,
            (0, _) => self.pick(chance >> 8),
            _ => (chance >> 8) as u32 & (self.pages - 1),
        }
    }

    /// Notes that a change is complete.
    pub fn note_written(&self, block: u32, lsn: Lsn) {
        if let Some(written) = self.written.get(block as usize) {
            written.store(lsn.0, Ordering::Release);
        }
    }

    /// The LSN of the last complete change of a page.
    pub fn last(&self, block: u32) -> Lsn {
        Lsn(self.written.get(block as usize).map_or(0, |written| written.load(Ordering::Acquire)))
    }
}

pub fn key_of(block: u32) -> Key {
    rel_block_key(REL, block)
}

fn data(block: u32, lsn: Lsn) -> [u8; DATA] {
    let mut data = [0; DATA];
    for (at, word) in data.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = if at == 0 { lsn.0 } else { mixed(lsn.0 ^ (u64::from(block) << 40) ^ at as u64) }.to_le_bytes();
    }
    data
}

/// A heap page of a tuple that changes and one that does not, and that no compression makes smaller.
pub fn page(block: u32, lsn: Lsn) -> Bytes {
    let mut page = Box::new([0; PAGE]);
    PageMut::new(&mut *page).init(0);
    let (first, filler) = (PAGE - TUPLE, 40);
    let line = |offset: usize, len: usize| (offset as u32 | 1 << 15 | (len as u32) << 17).to_le_bytes();
    page[12..14].copy_from_slice(&32u16.to_le_bytes());
    page[14..16].copy_from_slice(&(filler as u16).to_le_bytes());
    page[24..28].copy_from_slice(&line(first, TUPLE));
    page[28..32].copy_from_slice(&line(filler, first - filler));
    for (at, word) in page[filler..first].as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = mixed(u64::from(block) << 20 | at as u64).to_le_bytes();
    }
    for tuple in [first, filler] {
        page[tuple + 18..tuple + 20].copy_from_slice(&1u16.to_le_bytes());
        page[tuple + 20..tuple + 22].copy_from_slice(&[0, 8]);
        page[tuple + 22] = 24;
        page[tuple + 23] = 0;
    }
    page[PAGE - DATA..].copy_from_slice(&data(block, lsn));
    PageMut::new(&mut *page).set_lsn(lsn.0);
    Bytes::copy_from_slice(&*page)
}

/// The LSN of the last change in a page that was read, if the page is whole.
pub fn check(block: u32, found: &[u8]) -> Option<Lsn> {
    let lsn = found.get(PAGE - DATA..)?.first_chunk::<8>().map(|word| Lsn(u64::from_le_bytes(*word)))?;
    (found == page(block, lsn)).then_some(lsn)
}

fn inplace(block: u32, lsn: Lsn) -> Bytes {
    let (data, main_data) = (data(block, lsn), 1u16.to_le_bytes());
    let file = RelFile { spc: REL.spcnode, db: REL.dbnode, rel: REL.relnode };
    let block_ref = BlockRef { id: 0, rel: file, fork: 0, blkno: block, will_init: false, image: None, data: &data };
    let record = DecodedRecord {
        version: PgVersion::V15,
        header: RecordHeader { total_len: 0, xid: 700, prev: 1, info: INPLACE, rmid: RmgrId::HEAP.0, crc: 0 },
        blocks: std::iter::once(block_ref).collect(),
        origin: None,
        top_xid: None,
        main_data: &main_data,
    };
    let mut out = Vec::new();
    reduce_to_block(&record, 0, &mut out);
    out.into()
}
