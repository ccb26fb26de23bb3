//! Replays transaction ends, multixacts and commit timestamps into SLRU pages.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use postgres_formats::multixact::{self, MultiXactRecord};
use postgres_formats::record::DecodedRecord;
use postgres_formats::rmgr::RmgrId;
use postgres_formats::slru::{PAGES_PER_SEGMENT, SlruKind, segment_file_name};
use postgres_formats::version::PgVersion;
use postgres_formats::xact::{XactOp, parse_abort, parse_commit};
use postgres_formats::{clog, commit_ts};
use redo::slru::{self, XactStatus};

use super::files::Page;

pub struct SlruReplay {
    version: PgVersion,
    /// The files before the first record.
    base: PathBuf,
    pages: HashMap<(SlruKind, u32), Box<Page>>,
}

impl SlruReplay {
    pub fn new(version: PgVersion, base: PathBuf) -> Self {
        Self { version, base, pages: HashMap::new() }
    }

    pub fn record(&mut self, record: &DecodedRecord<'_>) {
        let (info, main) = (record.header.info, record.main_data);
        match record.header.rmgr() {
            RmgrId::CLOG => {
                if let Ok(clog::ClogRecord::ZeroPage { page }) = clog::parse(self.version, info, main) {
                    self.zero(SlruKind::Clog, page);
                }
            }
            RmgrId::COMMIT_TS => {
                if let Ok(commit_ts::CommitTsRecord::ZeroPage { page }) = commit_ts::parse(self.version, info, main) {
                    self.zero(SlruKind::CommitTs, page);
                }
            }
            RmgrId::MULTIXACT => self.multixact(info, main),
            RmgrId::XACT => self.transaction_end(record),
            _ => {}
        }
    }

    fn multixact(&mut self, info: u8, main: &[u8]) {
        match multixact::parse(self.version, info, main).expect("multixact record") {
            MultiXactRecord::ZeroOffsetsPage { page } => self.zero(SlruKind::MultiXactOffsets, page),
            MultiXactRecord::ZeroMembersPage { page } => self.zero(SlruKind::MultiXactMembers, page),
            MultiXactRecord::Create { id, offset, members } => {
                let count = members.len() as u32;
                for touched in pages_of(SlruKind::MultiXactOffsets, [id, id + 1]) {
                    let page = self.page(SlruKind::MultiXactOffsets, touched);
                    slru::create_multixact_offset(page, touched, id, offset, count);
                }
                for touched in pages_of(SlruKind::MultiXactMembers, offset..offset + count) {
                    let page = self.page(SlruKind::MultiXactMembers, touched);
                    let members = members.iter().map(|member| (member.xid, member.status));
                    slru::create_multixact_members(page, touched, offset, members);
                }
            }
            MultiXactRecord::Truncate { .. } => {}
        }
    }

    fn transaction_end(&mut self, record: &DecodedRecord<'_>) {
        let (info, main) = (record.header.info, record.main_data);
        let (end, status) = match XactOp::from_info(info).expect("transaction record") {
            XactOp::Commit | XactOp::CommitPrepared => (parse_commit(self.version, info, main), XactStatus::Committed),
            XactOp::Abort | XactOp::AbortPrepared => (parse_abort(self.version, info, main), XactStatus::Aborted),
            _ => return,
        };
        let end = end.expect("transaction end");
        let xid = end.twophase_xid.unwrap_or(record.header.xid);
        // Without a transaction id there is nothing to note: such a commit only drops files.
        let xids: Vec<u32> = end.subxacts.iter().copied().chain((xid != 0).then_some(xid)).collect();
        for touched in pages_of(SlruKind::Clog, xids.clone()) {
            slru::set_xact_status(self.page(SlruKind::Clog, touched), touched, xids.clone(), status);
        }
        if status == XactStatus::Committed {
            for touched in pages_of(SlruKind::CommitTs, xids.clone()) {
                let page = self.page(SlruKind::CommitTs, touched);
                slru::set_commit_ts(page, touched, xids.clone(), end.commit_time(), record.origin.unwrap_or(0));
            }
        }
    }

    fn page(&mut self, kind: SlruKind, number: u32) -> &mut Page {
        let base = &self.base;
        let read = || read(base, kind, number).unwrap_or_else(|| Box::new([0; 8192]));
        self.pages.entry((kind, number)).or_insert_with(read)
    }

    /// The page may have got its first entry already, with the last multixact of the page before.
    fn zero(&mut self, kind: SlruKind, number: u32) {
        self.pages.entry((kind, number)).or_insert_with(|| Box::new([0; 8192]));
    }

    /// Compares with the files of the stopped server. Returns the number of pages there and what is different.
    pub fn compare_files(&self, data: &Path) -> (usize, Vec<String>) {
        let (mut compared, mut problems) = (0, Vec::new());
        for ((kind, number), ours) in &self.pages {
            let Some(theirs) = read(data, *kind, *number) else {
                continue;
            };
            compared += 1;
            if let Some(at) = ours.iter().zip(theirs.iter()).position(|(a, b)| a != b) {
                let (a, b) = (&ours[at..(at + 10).min(8192)], &theirs[at..(at + 10).min(8192)]);
                problems.push(format!("{kind:?} page {number} from {at} on: {a:02X?}, not {b:02X?}"));
            }
        }
        (compared, problems)
    }
}

fn pages_of(kind: SlruKind, entries: impl IntoIterator<Item = u32>) -> Vec<u32> {
    let mut pages: Vec<u32> = entries.into_iter().map(|entry| kind.page_of(entry).0).collect();
    pages.sort_unstable();
    pages.dedup();
    pages
}

fn read(data: &Path, kind: SlruKind, number: u32) -> Option<Box<Page>> {
    let file = data.join(kind.directory()).join(segment_file_name(number / PAGES_PER_SEGMENT));
    let mut page = Box::new([0; 8192]);
    File::open(file).ok()?.read_exact_at(&mut page[..], u64::from(number % PAGES_PER_SEGMENT) * 8192).ok()?;
    Some(page)
}
