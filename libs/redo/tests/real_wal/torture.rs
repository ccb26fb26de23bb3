//! Replays damaged copies of real records on damaged copies of their pages: errors are fine, panics are not.

use postgres_formats::record::{BlockRef, DecodedRecord};
use redo::mask::{PageKind, mask_for_files, mask_page};
use redo::{RedoContext, apply_record};

use super::files::Page;

/// A simple generator of random numbers, the same in every run.
pub struct Torturer(u64);

impl Torturer {
    pub fn new() -> Self {
        Self(1)
    }

    /// The damage grows from round to round: main data, block data, page, and page header with line pointers.
    pub fn replay(
        &mut self,
        ctx: &RedoContext,
        record: &DecodedRecord<'_>,
        block: &BlockRef<'_>,
        page: &Page,
        end: u64,
    ) {
        let mut main = record.main_data.to_vec();
        let mut data = block.data.to_vec();
        let mut page = *page;
        for round in 0..4 {
            match round {
                0 => self.damage(&mut main),
                1 => self.damage(&mut data),
                2 => self.damage(&mut page),
                _ => self.damage(&mut page[8..60]),
            }
            let blocks = record.blocks.iter().map(|b| BlockRef {
                data: if b.id == block.id { &data } else { &[] },
                image: None,
                ..*b
            });
            let damaged = DecodedRecord {
                version: record.version,
                header: record.header,
                blocks: blocks.collect(),
                origin: None,
                top_xid: None,
                main_data: &main,
            };
            let mut copy = page;
            let _ = apply_record(ctx, &mut copy, &damaged, block.id, end);
            mask_for_files(PageKind::guess(block.fork, &copy), &mut copy.clone());
            mask_page(record.header.rmid, block.blkno, &mut copy);
        }
    }

    fn damage(&mut self, bytes: &mut [u8]) {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (self.0 >> 33) as usize % bytes.len().max(1);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = (self.0 >> 24) as u8;
        }
    }
}
