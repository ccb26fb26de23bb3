//! The current version of every page that a record has changed; all others are as in the files before the first record.

use std::collections::{BTreeMap, HashMap, HashSet};

use postgres_formats::dbase::DatabaseDir;
use postgres_formats::page::{PAGE_HEADER_SIZE, PageBytes, PageMut, PageRef};
use postgres_formats::record::RelFile;
use redo::mask::PageKind;
use redo::vm;

use super::files::DataFiles;
use super::report::FinalCounts;
use crate::verify::compare::{Verdict, relation_page};
use crate::verify::hint_race::is_newer_by_lsn_only;

pub(super) const MAIN: u8 = 0;
pub(super) const VM: u8 = 2;
const FSM: u8 = 1;

/// The pages of one fork.
#[derive(Clone, Debug)]
struct Fork {
    pages: HashMap<u32, Box<PageBytes>>,
    /// Whose file has the pages before the first record; of a database that was copied, the copied one's.
    base: Option<RelFile>,
    /// Blocks from this number on are not taken from there: the fork was truncated.
    base_end: u32,
    /// Map pages that an image has emptied.
    emptied: HashSet<u32>,
    /// LSNs of a page's last changes while these are images of hints, any of which the server's page may have.
    hints: HashMap<u32, Vec<u64>>,
}

/// All pages.
pub(super) struct Pages {
    files: DataFiles,
    forks: HashMap<(RelFile, u8), Fork>,
    /// Databases made since: which one's files they were copied from, if any's.
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

    /// Takes a page out, all zero if there is none. To be put back.
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

    /// Notes whether an image has left a map page without any bit. `CREATE DATABASE` logs maps so, whatever is on them.
    pub(super) fn note_image(&mut self, rel: RelFile, fork: u8, blkno: u32, page: &PageBytes) {
        if fork == VM && page.iter().skip(PAGE_HEADER_SIZE).all(|byte| *byte == 0) {
            self.fork(rel, fork).emptied.insert(blkno);
        }
    }

    /// Notes whether the record that ends at `lsn`, which has changed the page, is an image of a hint.
    pub(super) fn note_hint(&mut self, rel: RelFile, fork: u8, blkno: u32, lsn: u64, is_hint: bool) {
        let hints = &mut self.fork(rel, fork).hints;
        if is_hint {
            hints.entry(blkno).or_default().push(lsn);
        } else {
            hints.remove(&blkno);
        }
    }

    /// A fork was cut to this number of blocks.
    pub(super) fn cut(&mut self, rel: RelFile, fork: u8, blocks: u32) {
        let entry = self.fork(rel, fork);
        entry.pages.retain(|blkno, _| *blkno < blocks);
        entry.base_end = entry.base_end.min(blocks);
    }

    /// A relation's map was cut with its main fork, that has `blocks` blocks now.
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

    /// A relation was dropped.
    pub(super) fn drop_relation(&mut self, rel: RelFile) {
        for fork in 0..4 {
            self.cut(rel, fork, 0);
        }
    }

    /// A database's directory was made, as a copy of another's or empty.
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

    /// A database's directory was removed.
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
                let lost = entry.emptied.contains(blkno);
                let raced = || {
                    let hints = entry.hints.get(blkno).map_or(&[][..], |hints| hints);
                    hints.contains(&PageRef::new(&theirs).lsn()) && is_newer_by_lsn_only(*fork, ours, &theirs)
                };
                match relation_page(*fork, Some(&ours[..]), &theirs) {
                    _ if *fork == FSM => counts.unlogged += 1,
                    Verdict::Equal => counts.equal(format!("{kind:?}")),
                    Verdict::Different(_) if lost && lacks_bits_only(ours, &theirs) => counts.equal("LostMap".into()),
                    Verdict::Different(_) if raced() => counts.equal("OlderHint".into()),
                    verdict => counts.different(format!("relation {rel:?} fork {fork} block {blkno}: {verdict:?}")),
                }
            }
        }
        Ok(counts)
    }
}

/// Whether map page `ours` is that of the server but for bits that it lacks.
fn lacks_bits_only(ours: &PageBytes, theirs: &PageBytes) -> bool {
    let (mut ours, mut theirs) = (*ours, *theirs);
    let is_subset = ours.iter().zip(&theirs).skip(PAGE_HEADER_SIZE).all(|(o, t)| o & !t == 0);
    for page in [&mut ours, &mut theirs] {
        PageMut::new(page).set_lsn(0);
        PageMut::new(page).set_checksum(0);
    }
    is_subset && ours.iter().zip(&theirs).take(PAGE_HEADER_SIZE).all(|(o, t)| o == t)
}
