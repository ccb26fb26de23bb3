//! Replay of transaction ends, multixacts and commit timestamps into SLRU pages.

use std::collections::HashMap;

use anyhow::Context;
use postgres_formats::multixact::{self, MultiXactRecord};
use postgres_formats::page::PageBytes;
use postgres_formats::record::DecodedRecord;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::slru::SlruKind;
use postgres_formats::version::PgVersion;
use postgres_formats::xact::{XactEnd, XactOp};
use postgres_formats::{clog, commit_ts};
use redo::slru::{self, XactStatus};

use super::files::DataFiles;
use super::final_counts::FinalCounts;
use crate::files::compare::{Verdict, slru_page};

/// All SLRU pages changed by a record.
pub(super) struct SlruPages {
    version: PgVersion,
    /// The value of `track_commit_timestamp` at the current record.
    timestamps: bool,
    pages: HashMap<(SlruKind, u32), Box<PageBytes>>,
}

impl SlruPages {
    pub(super) fn new(version: PgVersion, timestamps: bool) -> Self {
        Self { version, timestamps, pages: HashMap::new() }
    }

    /// Sets `track_commit_timestamp`: when it is switched off, the server removes all commit timestamps.
    pub(super) fn set_timestamps(&mut self, on: bool) {
        self.timestamps = on;
        if !on {
            self.pages.retain(|(kind, _), _| *kind != SlruKind::CommitTs);
        }
    }

    /// Replays a record of the resource managers that change only SLRUs.
    pub(super) fn record(&mut self, record: &DecodedRecord<'_>, base: &mut DataFiles) -> anyhow::Result<()> {
        let (info, main) = (record.header.info, record.main_data);
        match record.header.rmgr() {
            RmgrId::CLOG => {
                if let clog::ClogRecord::ZeroPage { page } = clog::parse(self.version, info, main)? {
                    self.zero(SlruKind::Clog, page);
                }
            }
            RmgrId::COMMIT_TS => {
                if let commit_ts::CommitTsRecord::ZeroPage { page } = commit_ts::parse(self.version, info, main)? {
                    self.zero(SlruKind::CommitTs, page);
                }
            }
            RmgrId::MULTIXACT => self.multixact(info, main, base)?,
            _ => {}
        }
        Ok(())
    }

    fn multixact(&mut self, info: u8, main: &[u8], base: &mut DataFiles) -> anyhow::Result<()> {
        match multixact::parse(self.version, info, main)? {
            MultiXactRecord::ZeroOffsetsPage { page } => self.zero(SlruKind::MultiXactOffsets, page),
            MultiXactRecord::ZeroMembersPage { page } => self.zero(SlruKind::MultiXactMembers, page),
            MultiXactRecord::Create { id, offset, members } => {
                let count = u32::try_from(members.len()).context("too many members")?;
                for touched in pages_of(SlruKind::MultiXactOffsets, [id, id.wrapping_add(1)]) {
                    let page = self.page(SlruKind::MultiXactOffsets, touched, base)?;
                    slru::create_multixact_offset(page, touched, id, offset, count);
                }
                for touched in pages_of(SlruKind::MultiXactMembers, offset..offset + count) {
                    let page = self.page(SlruKind::MultiXactMembers, touched, base)?;
                    let members = members.iter().map(|member| (member.xid, member.status));
                    slru::create_multixact_members(page, touched, offset, members);
                }
            }
            MultiXactRecord::Truncate { .. } => {}
        }
        Ok(())
    }

    /// Records how a transaction and its subtransactions ended.
    pub(super) fn transaction_end(
        &mut self,
        record: &DecodedRecord<'_>,
        op: XactOp,
        end: &XactEnd<'_>,
        base: &mut DataFiles,
    ) -> anyhow::Result<()> {
        let xid = end.twophase_xid.unwrap_or(record.header.xid);
        // Without a transaction id there is nothing to record: such a commit only drops files.
        let xids: Vec<u32> = end.subxacts.iter().copied().chain((xid != 0).then_some(xid)).collect();
        let committed = matches!(op, XactOp::Commit | XactOp::CommitPrepared);
        let status = if committed { XactStatus::Committed } else { XactStatus::Aborted };
        for touched in pages_of(SlruKind::Clog, xids.clone()) {
            slru::set_xact_status(self.page(SlruKind::Clog, touched, base)?, touched, xids.clone(), status);
        }
        if committed && self.timestamps {
            for touched in pages_of(SlruKind::CommitTs, xids.clone()) {
                let page = self.page(SlruKind::CommitTs, touched, base)?;
                slru::set_commit_ts(page, touched, xids.clone(), end.commit_time(), record.origin.unwrap_or(0));
            }
        }
        Ok(())
    }

    fn page(&mut self, kind: SlruKind, number: u32, base: &mut DataFiles) -> anyhow::Result<&mut PageBytes> {
        use std::collections::hash_map::Entry;
        Ok(match self.pages.entry((kind, number)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Box::new(base.slru_page(kind, number)?.unwrap_or([0; 8192]))),
        })
    }

    /// Zeros a page, unless it already has its first entry, written along with the last multixact of the preceding
    /// page.
    fn zero(&mut self, kind: SlruKind, number: u32) {
        self.pages.entry((kind, number)).or_insert_with(|| Box::new([0; 8192]));
    }

    /// Compares all pages with the files of the stopped server, which has truncated some.
    pub(super) fn compare_files(&self, files: &mut DataFiles) -> anyhow::Result<FinalCounts> {
        let mut counts = FinalCounts::default();
        for ((kind, number), ours) in &self.pages {
            let Some(theirs) = files.slru_page(*kind, *number)? else {
                counts.absent += 1;
                continue;
            };
            match slru_page(*kind == SlruKind::CommitTs, Some(&ours[..]), &theirs) {
                Verdict::Equal => counts.equal(format!("{kind:?}")),
                Verdict::UnloggedTime => counts.equal("UnloggedTime".into()),
                verdict => counts.different(format!("{kind:?} page {number}: {verdict:?}")),
            }
        }
        Ok(counts)
    }
}

fn pages_of(kind: SlruKind, entries: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut pages: Vec<u32> = entries.into_iter().map(|entry| kind.page_of(entry).0).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}
