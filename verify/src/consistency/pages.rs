//! The current version of every page changed by a record; all others are as in the files before the first record.

use std::collections::{BTreeMap, HashMap, HashSet};

use postgres_formats::dbase::DatabaseDir;
use postgres_formats::page::{PageBytes, PageRef};
use postgres_formats::record::RelFile;
use redo::mask::PageKind;
use redo::vm;

use super::files::DataFiles;
use super::final_counts::FinalCounts;
use crate::files::compare::{Verdict, relation_page};
use crate::files::hints::differs_by_lsn_only;
use crate::files::lost_map::Map;

pub(super) const MAIN: u8 = 0;
pub(super) const VM: u8 = 2;
const FSM: u8 = 1;

/// The pages of one fork.
#[derive(Clone, Debug)]
struct Fork {
    pages: HashMap<u32, Box<PageBytes>>,
    /// The relation whose files have the pages before the first record; for a copied database, that of its source.
    base: Option<RelFile>,
    /// Blocks from this number on are not read from there: the fork was truncated.
    base_end: u32,
    /// Map pages that an image has left empty.
    emptied: HashSet<u32>,
    /// For each page, the LSNs that the server's page may have: that of its last change that was not a hint, and
    /// those of hints since.
    hints: HashMap<u32, Vec<u64>>,
}

/// All pages.
pub(super) struct Pages {
    files: DataFiles,
    forks: HashMap<(RelFile, u8), Fork>,
    /// Databases created since the start, with the database whose files they were copied from, if any.
    databases: HashMap<(u32, u32), Option<(u32, u32)>>,
}

impl Pages {
    pub(super) fn new(files: DataFiles) -> Self {
        Self { files, forks: HashMap::new(), databases: HashMap::new() }
    }

    /// The files before the first record.
    pub(super) fn files(&mut self) -> &mut DataFiles {
        &mut self.files
    }

    fn base_of(&self, rel: RelFile) -> Option<RelFile> {
        match self.databases.get(&(rel.spc, rel.db)) {
            Some(Some((spc, db))) => Some(RelFile { spc: *spc, db: *db, rel: rel.rel }),
            Some(None) => None,
            None => Some(rel),
        }
    }

    fn fork(&mut self, rel: RelFile, fork: u8) -> &mut Fork {
        let base = self.base_of(rel);
        let new =
            || Fork { pages: HashMap::new(), base, base_end: u32::MAX, emptied: HashSet::new(), hints: HashMap::new() };
        self.forks.entry((rel, fork)).or_insert_with(new)
    }

    /// Takes a page out, zeroed if it does not exist. The caller must put it back.
    pub(super) fn take(&mut self, rel: RelFile, fork: u8, blkno: u32) -> anyhow::Result<Box<PageBytes>> {
        let entry = self.fork(rel, fork);
        if let Some(page) = entry.pages.remove(&blkno) {
            return Ok(page);
        }
        let base = entry.base.filter(|_| blkno < entry.base_end);
        let page = match base {
            Some(base) => self.files.relation_page(base, fork, blkno)?,
            None => None,
        };
        Ok(Box::new(page.unwrap_or([0; 8192])))
    }

    pub(super) fn put(&mut self, rel: RelFile, fork: u8, blkno: u32, page: Box<PageBytes>) {
        self.fork(rel, fork).pages.insert(blkno, page);
    }

    /// Notes that an image has left a map empty, if so. `CREATE DATABASE` logs empty images of maps, whatever their
    /// content.
    pub(super) fn note_image(&mut self, rel: RelFile, fork: u8, blkno: u32, page: &PageBytes) {
        if Map::of(fork, page).is_some_and(|map| map.is_empty(page)) {
            self.fork(rel, fork).emptied.insert(blkno);
        }
    }

    /// Notes that the record ending at `lsn` logged a hint on the page, which had the LSN `before`.
    pub(super) fn note_hint(&mut self, rel: RelFile, fork: u8, blkno: u32, lsn: u64, before: u64) {
        self.fork(rel, fork).hints.entry(blkno).or_insert_with(|| vec![before]).push(lsn);
    }

    /// Notes that a record other than a hint has changed the page.
    pub(super) fn note_change(&mut self, rel: RelFile, fork: u8, blkno: u32) {
        self.fork(rel, fork).hints.remove(&blkno);
    }

    /// Truncates a fork to `blocks` blocks.
    pub(super) fn cut(&mut self, rel: RelFile, fork: u8, blocks: u32) {
        let entry = self.fork(rel, fork);
        entry.pages.retain(|blkno, _| *blkno < blocks);
        entry.base_end = entry.base_end.min(blocks);
    }

    /// Truncates a relation's visibility map along with its main fork, which has `blocks` blocks now.
    pub(super) fn cut_map(&mut self, rel: RelFile, blocks: u32) -> anyhow::Result<()> {
        let at = vm::position(blocks);
        let is_cut_within = (at.byte, at.shift) != (0, 0);
        self.cut(rel, VM, at.page + u32::from(is_cut_within));
        if is_cut_within {
            let mut page = self.take(rel, VM, at.page)?;
            vm::truncate_tail(&mut page, at.byte, at.shift);
            self.put(rel, VM, at.page, page);
        }
        Ok(())
    }

    /// Drops a relation.
    pub(super) fn drop_relation(&mut self, rel: RelFile) {
        for fork in 0..4 {
            self.cut(rel, fork, 0);
        }
    }

    /// Creates a database's directory, as a copy of another or empty.
    pub(super) fn create_database(&mut self, to: DatabaseDir, from: Option<DatabaseDir>) {
        let Some(from) = from else {
            self.databases.insert((to.tablespace, to.db), None);
            return;
        };
        let source = self.databases.get(&(from.tablespace, from.db)).copied();
        let source = source.unwrap_or(Some((from.tablespace, from.db)));
        self.databases.insert((to.tablespace, to.db), source);
        let is_source = |rel: &RelFile| (rel.spc, rel.db) == (from.tablespace, from.db);
        let copied: Vec<_> = self.forks.iter().filter(|((rel, _), _)| is_source(rel)).collect();
        let copied: Vec<_> = copied.into_iter().map(|((rel, fork), pages)| ((*rel, *fork), pages.clone())).collect();
        for ((rel, fork), pages) in copied {
            self.forks.insert((RelFile { spc: to.tablespace, db: to.db, rel: rel.rel }, fork), pages);
        }
    }

    /// Removes a database's directory.
    pub(super) fn drop_database(&mut self, dir: DatabaseDir) {
        self.forks.retain(|(rel, _), _| (rel.spc, rel.db) != (dir.tablespace, dir.db));
        self.databases.insert((dir.tablespace, dir.db), None);
    }

    /// Compares all pages with the files of the stopped server.
    pub(super) fn compare_files(&self, files: &mut DataFiles) -> anyhow::Result<FinalCounts> {
        let mut counts = FinalCounts::default();
        let mut forks: Vec<_> = self.forks.iter().collect();
        forks.sort_by_key(|((rel, fork), _)| (rel.spc, rel.db, rel.rel, *fork));
        for ((rel, fork), entry) in forks {
            let pages: BTreeMap<_, _> = entry.pages.iter().collect();
            for (blkno, ours) in pages {
                let Some(theirs) = files.relation_page(*rel, *fork, *blkno)? else {
                    counts.absent += 1;
                    continue;
                };
                let kind = PageKind::guess(*fork, &theirs);
                let lost = || {
                    let map = Map::of(*fork, &theirs).filter(|_| entry.emptied.contains(blkno));
                    map.is_some_and(|map| map.lacks_content_only(ours, &theirs))
                };
                let hinted = || {
                    let lsns = entry.hints.get(blkno).map_or(&[][..], |lsns| lsns);
                    lsns.contains(&PageRef::new(&theirs).lsn()) && differs_by_lsn_only(*fork, ours, &theirs)
                };
                match relation_page(*fork, Some(&ours[..]), &theirs) {
                    _ if *fork == FSM => counts.unlogged += 1,
                    Verdict::Equal => counts.equal(format!("{kind:?}")),
                    Verdict::Different(_) if lost() => counts.equal("LostMap".into()),
                    Verdict::Different(_) if hinted() => counts.equal("OtherHint".into()),
                    verdict => counts.different(format!("relation {rel:?} fork {fork} block {blkno}: {verdict:?}")),
                }
            }
        }
        Ok(counts)
    }
}
