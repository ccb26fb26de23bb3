//! A model of a Postgres: it writes valid WAL of toy tables and transactions, is promoted, crashes in the middle of a
//! record, and remembers what each page is after each record.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use pageserver_api::key::{
    ALL_RELATIONS, CHECKPOINT_KEY, DBDIR_KEY, Key, PARAMETERS_KEY, TABLESPACES_KEY, TWOPHASEDIR_KEY, rel_block_key,
    rel_size_key, slru_block_key, slru_dir_key,
};
use pageserver_api::parameters::ClusterParameters;
use pageserver_api::reltag::{RelTag, SlruKind};
use pageserver_api::value::Value;
use pgdata::directory::{DbDir, SlruDir, TwoPhaseDir, encode, encode_twophase};
use postgres_formats::BLCKSZ;
use postgres_formats::checkpoint::CheckPoint;
use postgres_formats::record::RelFile;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::xlog::op;
use simulated::model::Model;
use simulated::random::Random;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;
use wal_decoder::tablespaces::TablespaceTable;

use crate::heap::Page;
use crate::wal::{Block, Content, Log, SEGMENT, SYSTEM, VERSION};

/// Where the timeline is created, and where it has an empty database.
pub const CREATED: Lsn = Lsn(0x20_0020);
pub const BEGINS: Lsn = Lsn(0x20_0028);
/// Where its tables are.
pub const TABLESPACE: u32 = 1663;
/// The database that has them.
pub const DATABASE: u32 = 5;
/// The first transaction.
const FIRST_XID: u32 = 700;
/// Tables at once, and pages of one.
const TABLES: usize = 3;
const PAGES: usize = 4;
/// Of tables, of transactions, of the commit log (`heapam_xlog.h`, `storage_xlog.h`, `xact.h`, `clog.h`).
const HEAP_INSERT: u8 = 0x00;
const HEAP_INPLACE: u8 = 0x70;
const HEAP_INIT_PAGE: u8 = 0x80;
const SMGR_CREATE: u8 = 0x11;
const SMGR_TRUNCATE: u8 = 0x21;
const TRUNCATE_HEAP: u32 = 1;
const XACT_COMMIT: u8 = 0x00;
const XACT_ABORT: u8 = 0x20;
const XACT_HAS_INFO: u8 = 0x80;
const XINFO_HAS_FILES: u32 = 4;
const CLOG_ZERO_PAGE: u8 = 0x00;
/// Status of a transaction in the commit log.
const COMMITTED: u8 = 1;
const ABORTED: u8 = 2;

/// What there is of an empty database, as of `lsn`.
pub fn cluster(lsn: Lsn) -> SerializedValueBatch {
    let checkpoint = CheckPoint { next_xid: FIRST_XID.into(), next_multi: 1, timeline: 1, ..CheckPoint::default() };
    let parameters = ClusterParameters {
        pg_version: VERSION.major(),
        system_identifier: SYSTEM,
        wal_segment_size: SEGMENT,
        data_checksums: false,
        wal_log_hints: false,
        track_commit_timestamp: false,
        wal_level: 1,
        max_connections: 100,
        max_worker_processes: 8,
        max_wal_senders: 10,
        max_prepared_transactions: 0,
        max_locks_per_transaction: 64,
        wal_log_hints_changes: Vec::new(),
    };
    let databases = DbDir::from([((TABLESPACE, DATABASE), false), ((1664, 0), false)]);
    let mut values = vec![
        (DBDIR_KEY, encode(&databases)),
        (TWOPHASEDIR_KEY, encode_twophase(VERSION, &TwoPhaseDir::new())),
        (CHECKPOINT_KEY, Bytes::copy_from_slice(&checkpoint.encode())),
        (TABLESPACES_KEY, Bytes::from(TablespaceTable::default().encode())),
        (PARAMETERS_KEY, encode(&parameters)),
    ];
    values.extend(SlruKind::ALL.map(|kind| (slru_dir_key(kind), encode(&SlruDir::new()))));
    let mut batch = SerializedValueBatch::default();
    for (key, value) in values {
        batch.put_key(&key, lsn, &Value::Image(value)).unwrap_or_else(|error| panic!("{key} at {lsn}: {error}"));
    }
    batch
}

/// The file of table `rel`.
fn file(rel: u32) -> RelFile {
    RelFile { spc: TABLESPACE, db: DATABASE, rel }
}

/// The same as the page server names it.
pub fn tag(rel: u32) -> RelTag {
    RelTag { spcnode: TABLESPACE, dbnode: DATABASE, relnode: rel, forknum: 0 }
}

/// Where the commit log is.
pub fn commit_log() -> Range<Key> {
    slru_block_key(SlruKind::Clog, 0, 0)..slru_block_key(SlruKind::Clog, 0, 32)
}

/// Sizes of the tables that are there as of `lsn`.
pub fn tables(model: &Model, lsn: Lsn) -> BTreeMap<RelTag, u32> {
    let rels = model.keys(&ALL_RELATIONS).filter_map(|key| Some((key.to_rel_size()?, key)));
    let size = |key: Key| Some(u32::from_le_bytes(model.value(&key, lsn)?[..].try_into().ok()?));
    rels.filter_map(|(rel, key)| Some((rel, size(key)?))).collect()
}

/// All pages that are there as of `lsn`.
pub fn pages(model: &Model, lsn: Lsn) -> BTreeMap<Key, Bytes> {
    let blocks = |(rel, size): (RelTag, u32)| (0..size).map(move |number| rel_block_key(rel, number));
    let keys = tables(model, lsn).into_iter().flat_map(blocks).chain([commit_log().start]);
    keys.filter_map(|key| Some((key, model.value(&key, lsn)?))).collect()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Start and end of a record.
type Place = (Lsn, Lsn);

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Postgres {
    log: Log,
    /// For the end of each record its start.
    starts: BTreeMap<Lsn, Lsn>,
    /// The timelines that it was on, and where it left each.
    left: Vec<(u32, Lsn)>,
    tables: BTreeMap<u32, Vec<Page>>,
    commit_log: Option<Box<[u8; BLCKSZ]>>,
    next_xid: u32,
    next_rel: u32,
}

impl Postgres {
    /// One that has an empty database at `begins`, behind the record at `previous`.
    pub fn new(begins: Lsn, previous: Lsn) -> Self {
        let (left, tables) = Default::default();
        let (log, starts) = (Log::new(begins, previous, 1), BTreeMap::from([(begins, previous)]));
        Self { log, starts, left, tables, commit_log: None, next_xid: FIRST_XID, next_rel: 16384 }
    }

    /// Another one that goes on from `lsn`, the end of a record; `model` says what was so.
    pub fn branch(&self, lsn: Lsn, model: &Model) -> Self {
        let left: Vec<_> = self.left.iter().copied().filter(|(_, left)| *left < lsn).collect();
        let timeline = left.last().map_or(1, |(timeline, _)| timeline + 1);
        let page = |bytes: Bytes| -> Box<[u8; BLCKSZ]> {
            Box::new(bytes[..].try_into().unwrap_or_else(|_| panic!("{} bytes are no page", bytes.len())))
        };
        let pages = |(rel, size): (RelTag, u32)| {
            let all = (0..size).filter_map(|number| model.value(&rel_block_key(rel, number), lsn));
            (rel.relnode, all.map(|bytes| Page(page(bytes))).collect())
        };
        let previous = self.starts.get(&lsn).copied().unwrap_or_else(|| panic!("no record ends at {lsn}"));
        Self {
            log: self.log.up_to(lsn, previous, timeline),
            starts: self.starts.range(..=lsn).map(|(end, start)| (*end, *start)).collect(),
            left,
            tables: tables(model, lsn).into_iter().map(pages).collect(),
            commit_log: model.value(&commit_log().start, lsn).map(page),
            ..*self
        }
    }

    /// Its WAL.
    pub fn log(&self) -> &Log {
        &self.log
    }

    /// Where the WAL of its timeline `timeline` ends, and which one follows; none if it is still on it.
    pub fn left(&self, timeline: u32) -> Option<(Lsn, u32)> {
        let at = self.left.iter().position(|(left, _)| *left == timeline)?;
        let next = self.left.get(at + 1).map_or(self.log.timeline(), |(next, _)| *next);
        Some((self.left[at].1, next))
    }

    /// The history file of its timeline.
    pub fn history(&self) -> String {
        self.left.iter().map(|(timeline, lsn)| format!("{timeline}\t{lsn}\tno reason\n")).collect()
    }

    /// Writes a record of whatever kind.
    pub fn write(&mut self, random: &mut Random, model: &mut Model) -> Place {
        let place = self.write_some(random, model);
        self.note(place)
    }

    fn note(&mut self, (start, end): Place) -> Place {
        self.starts.insert(end, start);
        (start, end)
    }

    /// Ends a transaction: somebody waits until that is safe.
    pub fn commit(&mut self, model: &mut Model) -> Place {
        let place = match self.commit_log {
            Some(_) => self.end_transaction(COMMITTED, model),
            None => self.begin_commit_log(model),
        };
        self.note(place)
    }

    fn write_some(&mut self, random: &mut Random, model: &mut Model) -> Place {
        if self.commit_log.is_none() {
            return self.begin_commit_log(model);
        }
        let table = self.some_table(random);
        let Some(rel) = table else { return self.create(model) };
        match random.below(100) {
            0..45 => self.insert(rel, random, model),
            45..60 => self.overwrite(rel, random, model),
            60..70 => self.image(rel, random, model),
            70..84 => self.end_transaction(if random.coin() { COMMITTED } else { ABORTED }, model),
            84..88 => self.truncate(rel, random, model),
            88..91 => self.drop_table(rel, model),
            91..95 if self.tables.len() < TABLES => self.create(model),
            95 => self.crash(),
            96 if random.below(8) == 0 => self.log.switch_segment(),
            _ => self.checkpoint(),
        }
    }

    /// From now on it is on another timeline.
    pub fn promote(&mut self) -> Place {
        let (old, end) = (self.log.timeline(), self.log.end());
        self.left.push((old, end));
        self.log.set_timeline(old + 1);
        let main = [&[0; 8][..], &words(&[old + 1, old])].concat();
        let place = self.log.append(&Content::new(RmgrId::XLOG, op::END_OF_RECOVERY, main));
        self.note(place)
    }

    /// It crashes in the middle of a record that others may have got the beginning of, and says so when it is back.
    fn crash(&mut self) -> Place {
        let lost = Content::new(RmgrId::XLOG, op::NOOP, vec![7; BLCKSZ]);
        let at = self.log.tear(&lost);
        let main = [at.0.to_le_bytes(), [0; 8]].concat();
        self.log.append(&Content::new(RmgrId::XLOG, op::OVERWRITE_CONTRECORD, main))
    }

    fn checkpoint(&mut self) -> Place {
        let timeline = self.log.timeline();
        let checkpoint = CheckPoint {
            redo: self.log.end(),
            timeline,
            previous_timeline: timeline,
            full_page_writes: true,
            next_xid: self.next_xid.into(),
            next_oid: self.next_rel,
            next_multi: 1,
            ..CheckPoint::default()
        };
        self.log.append(&Content::new(RmgrId::XLOG, op::CHECKPOINT_ONLINE, checkpoint.encode().to_vec()))
    }

    fn begin_commit_log(&mut self, model: &mut Model) -> Place {
        let place = self.log.append(&Content::new(RmgrId::CLOG, CLOG_ZERO_PAGE, words(&[0])));
        self.commit_log = Some(Box::new([0; BLCKSZ]));
        self.remember_commit_log(place.1, model);
        place
    }

    fn remember_commit_log(&self, lsn: Lsn, model: &mut Model) {
        if let Some(page) = &self.commit_log {
            model.put(commit_log().start, lsn, Value::Image(Bytes::copy_from_slice(&page[..])));
        }
    }

    fn end_transaction(&mut self, status: u8, model: &mut Model) -> Place {
        let info = if status == COMMITTED { XACT_COMMIT } else { XACT_ABORT };
        let content = Content { xid: self.next_xid, ..Content::new(RmgrId::XACT, info, vec![0; 8]) };
        let place = self.log.append(&content);
        self.end_xid(status, place.1, model);
        place
    }

    fn end_xid(&mut self, status: u8, lsn: Lsn, model: &mut Model) {
        if let Some(page) = &mut self.commit_log {
            page[self.next_xid as usize / 4] |= status << (self.next_xid % 4 * 2);
        }
        self.next_xid += 1;
        self.remember_commit_log(lsn, model);
    }

    fn create(&mut self, model: &mut Model) -> Place {
        let rel = self.next_rel;
        self.next_rel += 1;
        let main = words(&[TABLESPACE, DATABASE, rel, 0]);
        let place = self.log.append(&Content::new(RmgrId::SMGR, SMGR_CREATE, main));
        self.tables.insert(rel, Vec::new());
        self.remember_size(rel, place.1, model);
        place
    }

    fn truncate(&mut self, rel: u32, random: &mut Random, model: &mut Model) -> Place {
        let pages = &mut self.tables.entry(rel).or_default();
        let left = random.below(pages.len() as u64 + 1) as usize;
        pages.truncate(left);
        let main = words(&[left as u32, TABLESPACE, DATABASE, rel, TRUNCATE_HEAP]);
        let place = self.log.append(&Content::new(RmgrId::SMGR, SMGR_TRUNCATE, main));
        self.remember_size(rel, place.1, model);
        place
    }

    fn drop_table(&mut self, rel: u32, model: &mut Model) -> Place {
        self.tables.remove(&rel);
        let main = [vec![0; 8], words(&[XINFO_HAS_FILES, 1, TABLESPACE, DATABASE, rel])].concat();
        let content = Content::new(RmgrId::XACT, XACT_COMMIT | XACT_HAS_INFO, main);
        let place = self.log.append(&Content { xid: self.next_xid, ..content });
        self.end_xid(COMMITTED, place.1, model);
        model.put(rel_size_key(tag(rel)), place.1, Value::Image(Bytes::new()));
        place
    }

    fn insert(&mut self, rel: u32, random: &mut Random, model: &mut Model) -> Place {
        let attributes = vec![random.next() as u8; 1 + random.below(600) as usize];
        let pages = self.tables.entry(rel).or_default();
        let with_room = pages.iter().position(|page| page.has_room(attributes.len()));
        let is_new = with_room.is_none() || random.below(8) == 0 && pages.len() < PAGES;
        let number = with_room.filter(|_| !is_new).unwrap_or(pages.len());
        if is_new && pages.len() >= PAGES {
            return self.end_transaction(COMMITTED, model);
        }
        if is_new {
            pages.push(Page::new());
        }
        let page = &mut pages[number];
        let (offset, data) = page.insert(number as u32, self.next_xid, &attributes);
        // The first change after a checkpoint brings the whole page.
        let image = (!is_new && random.below(8) == 0).then(|| page.0.clone());
        let data = if image.is_some() { Vec::new() } else { data };
        let block = Block { rel: file(rel), number: number as u32, init: is_new, image, data };
        let info = HEAP_INSERT | if is_new { HEAP_INIT_PAGE } else { 0 };
        let main = [&offset.to_le_bytes()[..], &[0]].concat();
        let content = Content { rmgr: RmgrId::HEAP, info, xid: self.next_xid, block: Some(block), main };
        self.change(rel, number, &content, model)
    }

    fn overwrite(&mut self, rel: u32, random: &mut Random, model: &mut Model) -> Place {
        let Some((number, page)) = self.some_page(rel, random) else { return self.insert(rel, random, model) };
        let offset = 1 + random.below(page.tuples().into()) as u16;
        let attributes = page.attributes(offset);
        attributes.fill(random.next() as u8);
        let data = attributes.to_vec();
        let block = Block { rel: file(rel), number: number as u32, data, ..Block::default() };
        let main = offset.to_le_bytes().to_vec();
        let content = Content { block: Some(block), ..Content::new(RmgrId::HEAP, HEAP_INPLACE, main) };
        self.change(rel, number, &content, model)
    }

    fn image(&mut self, rel: u32, random: &mut Random, model: &mut Model) -> Place {
        let Some((number, page)) = self.some_page(rel, random) else { return self.checkpoint() };
        let image = Some(page.0.clone());
        let block = Block { rel: file(rel), number: number as u32, image, ..Block::default() };
        let content = Content { block: Some(block), ..Content::new(RmgrId::XLOG, op::FPI, Vec::new()) };
        self.change(rel, number, &content, model)
    }

    /// Writes the record of a page that has changed, which then is of that record.
    fn change(&mut self, rel: u32, number: usize, content: &Content, model: &mut Model) -> Place {
        let place = self.log.append(content);
        let grows = content.block.as_ref().is_some_and(|block| block.init);
        if let Some(page) = self.tables.get_mut(&rel).and_then(|pages| pages.get_mut(number)) {
            page.set_lsn(place.1);
            model.put(rel_block_key(tag(rel), number as u32), place.1, Value::Image(page.bytes()));
        }
        if grows {
            self.remember_size(rel, place.1, model);
        }
        place
    }

    fn remember_size(&self, rel: u32, lsn: Lsn, model: &mut Model) {
        let size = self.tables.get(&rel).map_or(0, Vec::len) as u32;
        model.put(rel_size_key(tag(rel)), lsn, Value::Image(Bytes::copy_from_slice(&size.to_le_bytes())));
    }

    fn some_table(&self, random: &mut Random) -> Option<u32> {
        let at = random.below(self.tables.len().max(1) as u64) as usize;
        self.tables.keys().nth(at).copied()
    }

    /// A page of the table with tuples.
    fn some_page(&mut self, rel: u32, random: &mut Random) -> Option<(usize, &mut Page)> {
        let pages = self.tables.get_mut(&rel)?;
        let at = random.below(pages.len().max(1) as u64) as usize;
        pages.get_mut(at).filter(|page| page.tuples() > 0).map(|page| (at, page))
    }
}
