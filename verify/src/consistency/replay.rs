//! Replays records one by one and compares every changed page with the check image in the record. After a difference
//! it continues from that image, so that one fault does not hide others.

use anyhow::{Context, bail};
use postgres_formats::control_file::ControlFile;
use postgres_formats::dbase::{self, DatabaseDir, DbaseRecord};
use postgres_formats::heap::implicit_vm_clears;
use postgres_formats::image::restore_image;
use postgres_formats::page::{PageBytes, PageMut, PageRef};
use postgres_formats::record::{BlockRef, DecodedRecord, decode, reduce_to_block};
use postgres_formats::rmgr::{RmgrId, record_name};
use postgres_formats::smgr::{self, SmgrRecord, TRUNCATE_HEAP, TRUNCATE_VM};
use postgres_formats::xact::{XactOp, parse_abort, parse_commit};
use postgres_formats::xlog::{self, XlogRecord};
use redo::mask::mask_page;
use redo::{Applied, RedoContext, apply_record, vm};
use wal_decoder::stream::WalRecord;

use super::counts::{Counts, CountsByRecord};
use super::damage::Damage;
use super::files::DataFiles;
use super::pages::{MAIN, Pages, VM};
use super::slru::SlruPages;

/// Maximum number of differences described; all are counted.
const DESCRIBED: usize = 40;

/// The settings that redo depends on besides page and record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Settings {
    redo: RedoContext,
    track_commit_timestamp: bool,
}

impl Settings {
    pub(super) fn of(control: &ControlFile) -> Self {
        let redo = RedoContext {
            version: control.version,
            data_checksums: control.fields.data_checksum_version != 0,
            wal_log_hints: control.fields.wal_log_hints,
        };
        Self { redo, track_commit_timestamp: control.fields.track_commit_timestamp }
    }
}

/// The state of a cluster according to its records.
pub(super) struct Replay {
    ctx: RedoContext,
    pub(super) pages: Pages,
    pub(super) slru: SlruPages,
    pub(super) counts: CountsByRecord,
    pub(super) problems: Vec<String>,
    /// Visibility map bits cleared without a block reference.
    pub(super) map_clears: u64,
    damage: Option<Damage>,
}

impl Replay {
    pub(super) fn new(settings: Settings, base: DataFiles, damage_every: Option<u64>) -> Self {
        let Settings { redo: ctx, track_commit_timestamp } = settings;
        Self {
            ctx,
            pages: Pages::new(base),
            slru: SlruPages::new(ctx.version, track_commit_timestamp),
            counts: CountsByRecord::new(ctx.version),
            problems: Vec::new(),
            map_clears: 0,
            damage: damage_every.map(Damage::new),
        }
    }

    /// Replays one record.
    pub(super) fn record(&mut self, record: &WalRecord) -> anyhow::Result<()> {
        let end_lsn = record.end.0;
        let record = decode(self.ctx.version, &record.bytes)?;
        self.counts_of(&record).records += 1;
        match record.header.rmgr() {
            RmgrId::XLOG => self.settings(&record)?,
            RmgrId::XACT => self.transaction(&record)?,
            RmgrId::SMGR => self.storage(&record)?,
            RmgrId::DBASE => self.database(&record)?,
            _ => self.slru.record(&record, self.pages.files())?,
        }
        self.clear_map_bits(&record)?;
        for block in &record.blocks {
            self.block(&record, block, end_lsn)?;
        }
        self.problems.truncate(DESCRIBED);
        Ok(())
    }

    fn name(&self, record: &DecodedRecord<'_>) -> &'static str {
        record_name(self.ctx.version, record.header.rmgr(), record.header.info)
    }

    fn counts_of(&mut self, record: &DecodedRecord<'_>) -> &mut Counts {
        let name = self.name(record);
        self.counts.of(name)
    }

    fn settings(&mut self, record: &DecodedRecord<'_>) -> anyhow::Result<()> {
        if let XlogRecord::ParameterChange(now) = xlog::parse(self.ctx.version, record.header.info, record.main_data)? {
            self.ctx.wal_log_hints = now.wal_log_hints;
            self.slru.set_timestamps(now.track_commit_timestamp);
        }
        Ok(())
    }

    fn transaction(&mut self, record: &DecodedRecord<'_>) -> anyhow::Result<()> {
        let (version, info, main) = (self.ctx.version, record.header.info, record.main_data);
        let op = XactOp::from_info(info)?;
        let end = match op {
            XactOp::Commit | XactOp::CommitPrepared => parse_commit(version, info, main)?,
            XactOp::Abort | XactOp::AbortPrepared => parse_abort(version, info, main)?,
            _ => return Ok(()),
        };
        self.slru.transaction_end(record, op, &end, self.pages.files())?;
        end.dropped_rels.iter().for_each(|rel| self.pages.drop_relation(*rel));
        Ok(())
    }

    fn storage(&mut self, record: &DecodedRecord<'_>) -> anyhow::Result<()> {
        if let SmgrRecord::Truncate { rel, blocks, flags } = smgr::parse(record.header.info, record.main_data)? {
            if flags & TRUNCATE_HEAP != 0 {
                self.pages.cut(rel, MAIN, blocks);
            }
            if flags & TRUNCATE_VM != 0 {
                self.pages.cut_map(rel, blocks)?;
            }
        }
        Ok(())
    }

    fn database(&mut self, record: &DecodedRecord<'_>) -> anyhow::Result<()> {
        match dbase::parse(self.ctx.version, record.header.info, record.main_data)? {
            DbaseRecord::CreateFileCopy { to, from } => self.pages.create_database(to, Some(from)),
            DbaseRecord::CreateWalLog(to) => self.pages.create_database(to, None),
            DbaseRecord::Drop { db, tablespaces } => {
                tablespaces.into_iter().for_each(|tablespace| {
                    self.pages.drop_database(DatabaseDir { db, tablespace });
                });
            }
        }
        Ok(())
    }

    /// Heap records clear map bits by flags, unless the map is among their blocks.
    fn clear_map_bits(&mut self, record: &DecodedRecord<'_>) -> anyhow::Result<()> {
        for clear in implicit_vm_clears(record)? {
            let number = vm::position(clear.heap_blkno).page;
            let mut page = self.pages.take(clear.rel, VM, number)?;
            self.map_clears += u64::from(vm::clear_bits(&mut page, clear.heap_blkno, clear.bits));
            self.pages.put(clear.rel, VM, number, page);
        }
        Ok(())
    }

    fn block(&mut self, record: &DecodedRecord<'_>, block: &BlockRef<'_>, end_lsn: u64) -> anyhow::Result<()> {
        let mut page = self.pages.take(block.rel, block.fork, block.blkno)?;
        let before = page.clone();
        let applied = self.apply(record, block, &mut page, end_lsn);
        let place = format_args!("before {end_lsn:X}").to_string();
        let replayed = match &applied {
            Ok(Applied::Changed | Applied::Unchanged) => true,
            Ok(Applied::SkippedByLsn | Applied::SkippedNew) => {
                self.counts_of(record).skipped += 1;
                false
            }
            Err(error) => {
                self.counts_of(record).errors += 1;
                self.problems.push(format!("{error:#}"));
                false
            }
        };
        self.counts_of(record).blocks += 1;
        match block.image {
            Some(image) if image.apply => {
                self.counts_of(record).images += 1;
                if record.header.is_images() {
                    self.pages.note_image(block.rel, block.fork, block.blkno, &page);
                }
            }
            Some(image) => {
                let mut expected = Box::new([0; 8192]);
                restore_image(&image, &mut expected).with_context(|| format!("check image {place}"))?;
                let equal = replayed && self.compare(record, block, &before, &page, &expected, &place);
                if !equal && !PageMut::new(&mut expected).is_new() {
                    PageMut::new(&mut expected).set_lsn(end_lsn);
                    page = expected;
                }
            }
            None => {}
        }
        if record.header.is_hint() {
            self.pages.note_hint(block.rel, block.fork, block.blkno, end_lsn, PageRef::new(&before).lsn());
        } else {
            self.pages.note_change(block.rel, block.fork, block.blkno);
        }
        self.pages.put(block.rel, block.fork, block.blkno, page);
        Ok(())
    }

    /// Compares a page after its record with the check image. Returns whether they are equal.
    fn compare(
        &mut self,
        record: &DecodedRecord<'_>,
        block: &BlockRef<'_>,
        before: &PageBytes,
        page: &PageBytes,
        expected: &PageBytes,
        place: &str,
    ) -> bool {
        let differs = |page: &PageBytes| difference(record.header.rmid, block.blkno, page, expected);
        let problem = differs(page);
        let name = self.name(record);
        let counts = self.counts.of(name);
        counts.compared += 1;
        counts.changed += u64::from(differs(before).is_some());
        counts.different += u64::from(problem.is_some());
        let equal = problem.is_none();
        let BlockRef { id, rel, fork, blkno, .. } = block;
        let describe = |problem| format!("{name} {place}, block {id} {rel:?} fork {fork} block {blkno}: {problem}");
        self.problems.extend(problem.map(describe));
        equal
    }

    /// Applies the record in the form in which the pageserver stores it: once per page, reduced to what that page
    /// needs.
    fn apply(
        &mut self,
        record: &DecodedRecord<'_>,
        block: &BlockRef<'_>,
        page: &mut PageBytes,
        end_lsn: u64,
    ) -> anyhow::Result<Applied> {
        let mut reduced = Vec::new();
        reduce_to_block(record, block.id, &mut reduced);
        let reduced = decode(self.ctx.version, &reduced).context("a record reduced to one block")?;
        if let (Some(damage), Some(own)) = (&mut self.damage, reduced.block(block.id))
            && let Some(problem) = damage.replay(&self.ctx, &reduced, own, page, end_lsn)
        {
            bail!(problem);
        }
        Ok(apply_record(&self.ctx, page, &reduced, block.id, end_lsn)?)
    }
}

/// How two pages differ under the masks of a resource manager, if they do.
fn difference(rmid: u8, blkno: u32, ours: &PageBytes, expected: &PageBytes) -> Option<String> {
    let (mut ours, mut expected) = (*ours, *expected);
    mask_page(rmid, blkno, &mut ours);
    mask_page(rmid, blkno, &mut expected);
    let at = ours.iter().zip(&expected).position(|(a, b)| a != b)?;
    let count = ours.iter().zip(&expected).filter(|(a, b)| a != b).count();
    let sample = |page: &PageBytes| format!("{:02X?}", page.iter().skip(at).take(16).collect::<Vec<_>>());
    Some(format!("{count} bytes from {at} on: {}, not {}", sample(&ours), sample(&expected)))
}
