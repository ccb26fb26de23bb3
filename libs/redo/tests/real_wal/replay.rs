//! Replays WAL with [`redo`], compares every page with the check image in the record, and goes on after a difference
//! from that image, so that one fault does not hide others.

use std::collections::{BTreeMap, HashMap};

use postgres_formats::heap::implicit_vm_clears;
use postgres_formats::image::restore_image;
use postgres_formats::page::PageMut;
use postgres_formats::record::{BlockRef, DecodedRecord, RelFile, decode, reduce_to_block};
use postgres_formats::rmgr::{RmgrId, record_name};
use redo::mask::{PageKind, mask_for_files, mask_page};
use redo::{Applied, RedoContext, RedoError, apply_record, vm};

use super::files::{DataDir, Page, PageName};
use super::slru::SlruReplay;
use super::torture::Torturer;

const MAIN: u8 = 0;
const VM: u8 = 2;
/// Differences that are described; all are counted.
const DESCRIBED: usize = 40;
/// One of so many records is also replayed with damage.
const TORTURE_EVERY: u64 = 16;

/// What happened to the blocks of one record type.
#[derive(Clone, Copy, Default)]
pub struct Counts {
    pub blocks: u64,
    /// Compared with the check image.
    pub compared: u64,
    /// Of these: pages that differed from it before the record.
    pub stale_before: u64,
    pub different: u64,
    pub errors: u64,
    pub unsupported: u64,
    pub images: u64,
    pub skipped: u64,
}

pub struct Replay {
    ctx: RedoContext,
    /// The files before the first record.
    base: DataDir,
    /// Blocks from this number on are not taken from `base`: the fork was truncated.
    base_end: HashMap<(RelFile, u8), u32>,
    pages: HashMap<PageName, Box<Page>>,
    pub slru: SlruReplay,
    pub counts: BTreeMap<&'static str, Counts>,
    pub problems: Vec<String>,
    pub records: u64,
    torturer: Torturer,
    pub vm_clears: u64,
}

impl Replay {
    pub fn new(ctx: RedoContext, base: DataDir, slru: SlruReplay) -> Self {
        Self {
            ctx,
            base,
            slru,
            base_end: HashMap::new(),
            pages: HashMap::new(),
            counts: BTreeMap::new(),
            problems: Vec::new(),
            records: 0,
            torturer: Torturer::new(),
            vm_clears: 0,
        }
    }

    /// Replays one record, given as its bytes and the LSN of its end.
    pub fn record(&mut self, bytes: &[u8], end_lsn: u64) {
        let record = decode(self.ctx.version, bytes).unwrap_or_else(|e| panic!("record before {end_lsn:X}: {e}"));
        self.records += 1;
        self.slru.record(&record);
        self.clear_vm_bits(&record);
        if record.header.rmid == RmgrId::SMGR.0 && record.header.info & 0xF0 == 0x20 {
            self.truncate(record.main_data);
        }
        for block in &record.blocks {
            self.block(&record, block, end_lsn);
        }
    }

    fn block(&mut self, record: &DecodedRecord<'_>, block: &BlockRef<'_>, end_lsn: u64) {
        let name = (block.rel, block.fork, block.blkno);
        let mut page = self.page(name);
        let before = page.clone();
        let applied = self.apply(record, block.id, &mut page, end_lsn);

        let record_name = record_name(self.ctx.version, record.header.rmgr(), record.header.info);
        let counts = self.counts.entry(record_name).or_default();
        counts.blocks += 1;
        let replayed = matches!(applied, Ok(Applied::Changed | Applied::Unchanged));
        match &applied {
            Ok(Applied::Changed | Applied::Unchanged) => {}
            Ok(Applied::SkippedByLsn | Applied::SkippedNew) => counts.skipped += 1,
            Err(RedoError::Unsupported { .. }) => counts.unsupported += 1,
            Err(error) => {
                counts.errors += 1;
                self.problems.push(error.to_string());
            }
        }
        if block.image.is_some_and(|image| image.apply) {
            counts.images += 1;
        } else if let Some(image) = block.image {
            let mut expected = Box::new([0; 8192]);
            restore_image(&image, &mut expected).expect("check image");
            let differs = |page| difference(record.header.rmid, block.blkno, page, &expected);
            let problem = if replayed { differs(&page) } else { None };
            counts.compared += u64::from(replayed);
            counts.stale_before += u64::from(replayed && differs(&before).is_some());
            counts.different += u64::from(problem.is_some());
            if (problem.is_some() || !replayed) && !PageMut::new(&mut expected).is_new() {
                PageMut::new(&mut expected).set_lsn(end_lsn);
                page = expected;
            }
            let place = || format!("{record_name} block {} {name:?} before {end_lsn:X}", block.id);
            self.problems.extend(problem.map(|problem| format!("{}: {problem}", place())));
        }
        self.problems.truncate(DESCRIBED);
        self.pages.insert(name, page);
    }

    /// Applies the record as a page server keeps it: once per page, reduced to what that page needs.
    fn apply(
        &mut self,
        record: &DecodedRecord<'_>,
        id: u8,
        page: &mut Page,
        end_lsn: u64,
    ) -> Result<Applied, RedoError> {
        let mut reduced = Vec::new();
        reduce_to_block(record, id, &mut reduced);
        let reduced = decode(self.ctx.version, &reduced).expect("a reduced record is a record");
        if self.records.is_multiple_of(TORTURE_EVERY) {
            let own = reduced.block(id).expect("the block stays");
            self.torturer.replay(&self.ctx, &reduced, own, page, end_lsn);
        }
        apply_record(&self.ctx, page, &reduced, id, end_lsn)
    }

    /// The current version of a page, all zero if there is none.
    fn page(&mut self, name: PageName) -> Box<Page> {
        if let Some(page) = self.pages.remove(&name) {
            return page;
        }
        let end = self.base_end.get(&(name.0, name.1)).copied().unwrap_or(u32::MAX);
        let page = if name.2 < end { self.base.read(name) } else { None };
        page.unwrap_or_else(|| Box::new([0; 8192]))
    }

    /// Heap records clear map bits by flags, unless the map is among their blocks.
    fn clear_vm_bits(&mut self, record: &DecodedRecord<'_>) {
        for clear in implicit_vm_clears(record).expect("heap record") {
            let name = (clear.rel, VM, vm::position(clear.heap_blkno).page);
            let mut page = self.page(name);
            self.vm_clears += u64::from(vm::clear_bits(&mut page, clear.heap_blkno, clear.bits));
            self.pages.insert(name, page);
        }
    }

    /// `xl_smgr_truncate`: new length 0, relation 4, flags 16 (1 main fork, 2 visibility map).
    fn truncate(&mut self, main: &[u8]) {
        let number = |at: usize| u32::from_le_bytes(main[at..at + 4].try_into().unwrap());
        let (blocks, flags) = (number(0), number(16));
        let rel = RelFile { spc: number(4), db: number(8), rel: number(12) };
        if flags & 1 != 0 {
            self.cut(rel, MAIN, blocks);
        }
        if flags & 2 != 0 {
            let at = vm::position(blocks);
            let is_cut_within = (at.byte, at.shift) != (0, 0);
            self.cut(rel, VM, at.page + u32::from(is_cut_within));
            if is_cut_within {
                let mut page = self.page((rel, VM, at.page));
                vm::truncate_tail(&mut page, at.byte, at.shift);
                self.pages.insert((rel, VM, at.page), page);
            }
        }
    }

    fn cut(&mut self, rel: RelFile, fork: u8, blocks: u32) {
        self.pages.retain(|name, _| (name.0, name.1) != (rel, fork) || name.2 < blocks);
        let end = self.base_end.entry((rel, fork)).or_insert(u32::MAX);
        *end = blocks.min(*end);
    }

    /// Compares all pages with the files of the stopped server. Returns how many there were, by kind.
    pub fn compare_files(&mut self, files: &mut DataDir) -> BTreeMap<String, u64> {
        let mut compared = BTreeMap::new();
        for (name, page) in &self.pages {
            let Some(mut theirs) = files.read(*name) else {
                continue;
            };
            let mut ours = page.clone();
            let kind = PageKind::guess(name.1, &theirs);
            // Some index builds write a page to its file before they log it: then its LSN is 0 or 1 there.
            let logged_later = PageMut::new(&mut theirs).lsn() <= 1 && !PageMut::new(&mut theirs).is_new();
            if logged_later {
                PageMut::new(&mut ours).set_lsn(0);
                PageMut::new(&mut theirs).set_lsn(0);
            }
            mask_for_files(kind, &mut ours);
            mask_for_files(kind, &mut theirs);
            *compared.entry(format!("{kind:?}")).or_insert(0) += 1;
            if let Some(difference) = first_difference(&ours, &theirs) {
                self.problems.push(format!("file {name:?} {kind:?}: {difference}"));
            }
        }
        compared
    }

    pub fn print_counts(&self) {
        println!("{} records, {} visibility map bits cleared without block reference", self.records, self.vm_clears);
        println!("{:26} blocks compared (stale before) different errors unsupported images skipped", "record");
        for (name, c) in &self.counts {
            println!(
                "{name:26} {:>6} {:>8} {:>14} {:>9} {:>6} {:>11} {:>6} {:>7}",
                c.blocks, c.compared, c.stale_before, c.different, c.errors, c.unsupported, c.images, c.skipped
            );
        }
        self.problems.iter().for_each(|problem| println!("{problem}"));
    }
}

/// How two pages differ under the masks of a resource manager, if they do.
fn difference(rmid: u8, blkno: u32, ours: &Page, expected: &Page) -> Option<String> {
    let (mut ours, mut expected) = (*ours, *expected);
    mask_page(rmid, blkno, &mut ours);
    mask_page(rmid, blkno, &mut expected);
    first_difference(&ours, &expected)
}

fn first_difference(ours: &Page, expected: &Page) -> Option<String> {
    let at = ours.iter().zip(expected).position(|(a, b)| a != b)?;
    let count = ours.iter().zip(expected).filter(|(a, b)| a != b).count();
    let end = (at + 16).min(8192);
    Some(format!("{count} bytes from {at} on: {:02X?}, not {:02X?}", &ours[at..end], &expected[at..end]))
}
