//! Compares one fork or SLRU segment with its files.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use datadir::{ForkFiles, PageReader};
use pageserver_api::key::{Key, rel_block_key, slru_block_key};
use pageserver_api::reltag::{FSM_FORK, RelTag, SlruKind};
use pgdata::listing::Listing;
use postgres_formats::page::PageBytes;
use utils::lsn::Lsn;

use super::compare::{self, Verdict};
use super::hints;
use super::lost_map;
use super::report::Report;
use pgdata::TimelineStore;

/// Number of pages read at once where there are no files to compare with.
const PAGES_PER_READ: u32 = 128;

/// The subject of a comparison.
#[derive(Clone, Copy, Debug)]
enum Target {
    Relation(RelTag),
    Slru(SlruKind, u32),
}

/// The timeline's fork and the server's.
#[derive(Debug)]
pub(super) struct ForkJob {
    target: Target,
    /// Number of blocks in the timeline; `None` if the fork does not exist there.
    ours: Option<u32>,
    /// Without segments if the fork does not exist there.
    files: ForkFiles,
}

impl ForkJob {
    pub(super) fn relation(rel: RelTag, ours: Option<u32>, files: ForkFiles) -> Self {
        Self { target: Target::Relation(rel), ours, files }
    }

    pub(super) fn slru(kind: SlruKind, segno: u32, ours: Option<u32>, files: ForkFiles) -> Self {
        Self { target: Target::Slru(kind, segno), ours, files }
    }

    /// Compares all pages.
    pub(super) async fn run(self, store: &TimelineStore, lsn: Lsn, report: &Report) -> anyhow::Result<()> {
        let listing = Listing::new(store, lsn);
        let (theirs, ours) = (self.files.blocks, self.ours.unwrap_or(0));
        if self.ours.is_some() && self.files.segments.is_empty() && !self.is_unlogged() {
            report.difference(format!("{}: exists only in the timeline, with {ours} blocks", self.name()));
        }
        let mut reader = PageReader::new(self.files.clone());
        while let Some(chunk) = reader.next_chunk().await? {
            let end = chunk.first + chunk.pages().count() as u32;
            let stored = listing.dense(self.keys(chunk.first.min(ours)..end.min(ours))).await?;
            for (blkno, page) in chunk.pages() {
                let place =
                    || format!("{} block {blkno} ({} offset {})", self.name(), chunk.path, chunk.offset_of(blkno));
                let ours = stored.get(&self.key(blkno));
                let verdict = match (self.verdict(ours, page), ours) {
                    (Verdict::Different(at), Some(ours)) => self.explain(store, lsn, blkno, ours, page, at).await?,
                    (verdict, _) => verdict,
                };
                report.count(verdict, place);
            }
        }
        self.beyond_files(&listing, theirs..ours, report).await
    }

    /// Searches the history of a differing page for known reasons why a server's page differs from a replayed one.
    async fn explain(
        &self,
        store: &TimelineStore,
        lsn: Lsn,
        blkno: u32,
        ours: &Bytes,
        theirs: &PageBytes,
        at: usize,
    ) -> anyhow::Result<Verdict> {
        let (key, fork) = (self.key(blkno), self.fork());
        let Some(fork) = fork else { return Ok(Verdict::Different(at)) };
        let explained = match lost_map::explain(store, key, fork, ours, theirs).await? {
            None => hints::explain(store, key, fork, lsn, ours, theirs).await?,
            lost => lost,
        };
        Ok(explained.unwrap_or(Verdict::Different(at)))
    }

    /// Counts pages that exist only in the timeline. Those of a free space map only need to be readable.
    async fn beyond_files(
        &self,
        listing: &Listing<'_, TimelineStore>,
        range: Range<u32>,
        report: &Report,
    ) -> anyhow::Result<()> {
        let mut next = range.start;
        while next < range.end {
            let end = range.end.min(next + PAGES_PER_READ);
            let stored: BTreeMap<Key, Bytes> = listing.dense(self.keys(next..end)).await?;
            for blkno in next..next + stored.len() as u32 {
                let verdict = if self.is_unlogged() { Verdict::Unlogged } else { Verdict::OnlyStored };
                report.count(verdict, || format!("{} block {blkno}", self.name()));
            }
            next = end;
        }
        Ok(())
    }

    /// Free space maps are hints, which are not logged except for occasional images.
    fn is_unlogged(&self) -> bool {
        self.fork() == Some(FSM_FORK)
    }

    fn fork(&self) -> Option<u8> {
        match self.target {
            Target::Relation(rel) => Some(rel.forknum),
            Target::Slru(..) => None,
        }
    }

    fn verdict(&self, ours: Option<&Bytes>, theirs: &PageBytes) -> Verdict {
        match self.target {
            Target::Relation(_) if self.is_unlogged() => Verdict::Unlogged,
            Target::Relation(rel) => compare::relation_page(rel.forknum, ours.map(|page| &page[..]), theirs),
            Target::Slru(kind, _) => compare::slru_page(kind == SlruKind::CommitTs, ours.map(|page| &page[..]), theirs),
        }
    }

    fn key(&self, blkno: u32) -> Key {
        match self.target {
            Target::Relation(rel) => rel_block_key(rel, blkno),
            Target::Slru(kind, segno) => slru_block_key(kind, segno, blkno),
        }
    }

    fn keys(&self, blocks: Range<u32>) -> Range<Key> {
        self.key(blocks.start)..self.key(blocks.end)
    }

    fn name(&self) -> String {
        match self.target {
            Target::Relation(rel) => format!("relation {rel}"),
            Target::Slru(kind, segno) => format!("{}/{segno:04X}", kind.dir()),
        }
    }
}
