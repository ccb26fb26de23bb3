//! Replays damaged copies of real records on damaged copies of their pages: each may fail, but a failed one must
//! leave its page unchanged, and nothing may panic.

use postgres_formats::page::PageBytes;
use postgres_formats::record::{BlockRef, DecodedRecord};
use redo::mask::{PageKind, mask_for_files, mask_page};
use redo::{RedoContext, apply_record};

/// Replays damaged copies of some records.
#[derive(Debug)]
pub(super) struct Damage {
    /// Damage one record in this many.
    every: u64,
    seen: u64,
    /// State of a simple random number generator, the same in every run.
    random: u64,
}

impl Damage {
    pub(super) fn new(every: u64) -> Self {
        Self { every, seen: 0, random: 1 }
    }

    /// Replays damaged copies of a record's block, if it is due. The damage accumulates over the rounds: main data,
    /// block data, page, and page header with line pointers. Returns what went wrong, if anything did.
    pub(super) fn replay(
        &mut self,
        ctx: &RedoContext,
        record: &DecodedRecord<'_>,
        block: &BlockRef<'_>,
        page: &PageBytes,
        end: u64,
    ) -> Option<String> {
        self.seen += 1;
        if !self.seen.is_multiple_of(self.every) {
            return None;
        }
        let (mut main, mut data, mut page) = (record.main_data.to_vec(), block.data.to_vec(), *page);
        for round in 0..4 {
            match round {
                0 => self.change(&mut main),
                1 => self.change(&mut data),
                2 => self.change(&mut page),
                _ => self.change(&mut page[8..60]),
            }
            let own = |b: &BlockRef<'_>| if b.id == block.id { data.clone() } else { Vec::new() };
            let contents: Vec<Vec<u8>> = record.blocks.iter().map(own).collect();
            let blocks = record.blocks.iter().zip(&contents);
            let damaged = DecodedRecord {
                version: record.version,
                header: record.header,
                blocks: blocks.map(|(b, data)| BlockRef { data, image: None, ..*b }).collect(),
                origin: None,
                top_xid: None,
                main_data: &main,
            };
            let mut copy = page;
            if let Err(error) = apply_record(ctx, &mut copy, &damaged, block.id, end)
                && copy != page
            {
                return Some(format!("a failed redo has changed its page: {error}"));
            }
            mask_for_files(PageKind::guess(block.fork, &copy), &mut copy.clone());
            mask_page(record.header.rmid, block.blkno, &mut copy);
        }
        None
    }

    fn change(&mut self, bytes: &mut [u8]) {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (self.random >> 33) as usize % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = (self.random >> 24) as u8;
        }
    }
}
