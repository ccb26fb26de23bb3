//! Ends of transactions: status, commit time, files of dropped relations, prepared state, replication origins.

use bytes::Bytes;
use pageserver_api::key::{COMMIT_TIME_KEY, TWOPHASEDIR_KEY, repl_origin_key, twophase_file_key};
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::SlruKind;
use postgres_formats::record::DecodedRecord;
use postgres_formats::replorigin::{DO_NOT_REPLICATE, ReplOriginRecord};
use postgres_formats::slru::{CLOG_XACTS_PER_PAGE, COMMIT_TS_PER_PAGE};
use postgres_formats::twophase::parse_prepare;
use postgres_formats::version::PgVersion;
use postgres_formats::xact::XactEnd;
use smallvec::SmallVec;
use utils::lsn::Lsn;

use super::{IngestError, WalIngest};
use crate::directory::{decode_progress, encode_progress, encode_twophase};
use crate::store::PageStore;
use crate::timestamps::{PgTimestamp, encode_mark, leaves_mark};

impl<S: PageStore> WalIngest<S> {
    pub(super) async fn apply_commit(&mut self, rec: &DecodedRecord<'_>, end: &XactEnd<'_>) -> Result<(), IngestError> {
        self.put_commit(rec, end);
        if let Some(progress) = end.origin {
            self.advance_session_origin(rec, progress.lsn).await?;
        }
        self.end_prepared(end);
        self.drop_relations(end).await
    }

    /// Marks the transaction as committed.
    pub(super) fn put_commit(&mut self, rec: &DecodedRecord<'_>, end: &XactEnd<'_>) {
        let xids = self.ended_xids(rec, end);
        self.mark_commit_time(end.time);
        let for_times = if self.counters.tracks_commit_ts() { xids.clone() } else { Vec::new() };
        for (page, xids) in by_page(xids, CLOG_XACTS_PER_PAGE) {
            let change = WalRecord::ClogSetCommitted { xids, timestamp: end.time };
            self.change_slru_page(SlruKind::Clog, page, change);
        }
        let (timestamp, origin) = (end.commit_time(), rec.origin.unwrap_or(0));
        for (page, xids) in by_page(for_times, COMMIT_TS_PER_PAGE) {
            self.change_slru_page(SlruKind::CommitTs, page, WalRecord::CommitTs { xids, timestamp, origin });
        }
    }

    pub(super) async fn apply_abort(&mut self, rec: &DecodedRecord<'_>, end: &XactEnd<'_>) -> Result<(), IngestError> {
        for (page, xids) in by_page(self.ended_xids(rec, end), CLOG_XACTS_PER_PAGE) {
            self.change_slru_page(SlruKind::Clog, page, WalRecord::ClogSetAborted { xids });
        }
        if let Some(progress) = end.origin {
            self.advance_session_origin(rec, progress.lsn).await?;
        }
        self.end_prepared(end);
        self.drop_relations(end).await
    }

    fn mark_commit_time(&mut self, time: PgTimestamp) {
        if leaves_mark(self.commit_time, time) {
            self.commit_time = Some(time);
            self.put_image(COMMIT_TIME_KEY, encode_mark(time));
        }
    }

    /// The transaction and its subtransactions; empty if it had no id.
    fn ended_xids(&mut self, rec: &DecodedRecord<'_>, end: &XactEnd<'_>) -> Vec<u32> {
        let xid = end.twophase_xid.unwrap_or(rec.header.xid);
        if xid == 0 {
            return Vec::new();
        }
        let mut xids = Vec::with_capacity(1 + end.subxacts.len());
        xids.push(xid);
        xids.extend_from_slice(&end.subxacts);
        xids.iter().for_each(|xid| self.counters.see_xid(*xid));
        xids
    }

    async fn drop_relations(&mut self, end: &XactEnd<'_>) -> Result<(), IngestError> {
        for rel in &end.dropped_rels {
            self.drop_relation(*rel).await?;
        }
        Ok(())
    }

    pub(super) async fn apply_prepare(&mut self, rec: &DecodedRecord<'_>, state: &[u8]) -> Result<(), IngestError> {
        let prepared = parse_prepare(self.version, state).map_err(|error| self.inconsistent(error))?;
        prepared.subxacts.iter().for_each(|xid| self.counters.see_xid(*xid));
        let xid = self.full_xid(rec.header.xid);
        self.twophase.insert(xid);
        self.put_image(twophase_file_key(xid), Bytes::copy_from_slice(state));
        self.put_image(TWOPHASEDIR_KEY, encode_twophase(self.version, &self.twophase));
        // A transaction prepared at the origin counts as replicated; its commit is replicated separately.
        self.advance_session_origin(rec, prepared.origin_lsn).await
    }

    fn end_prepared(&mut self, end: &XactEnd<'_>) {
        if let Some(xid) = end.twophase_xid {
            let xid = self.full_xid(xid);
            if self.twophase.remove(&xid) {
                self.put_image(TWOPHASEDIR_KEY, encode_twophase(self.version, &self.twophase));
            }
        }
    }

    /// The number under which a prepared transaction is stored: with its epoch from version 17 on.
    fn full_xid(&self, xid: u32) -> u64 {
        if self.version < PgVersion::V17 {
            return u64::from(xid);
        }
        let next = self.counters.checkpoint().next_xid;
        let epoch = next >> 32;
        // Ids above the next one were assigned in the previous epoch.
        let epoch = if xid >= next as u32 { epoch.saturating_sub(1) } else { epoch };
        epoch << 32 | u64::from(xid)
    }

    pub(super) async fn apply_replorigin(&mut self, record: &ReplOriginRecord) -> Result<(), IngestError> {
        match *record {
            ReplOriginRecord::Set { node, remote_lsn, force } => self.advance_origin(node, remote_lsn, force).await,
            ReplOriginRecord::Drop { node } => {
                self.origins.insert(node, Lsn::INVALID);
                self.put_image(repl_origin_key(node), Bytes::new());
                Ok(())
            }
        }
    }

    /// Advances the progress of the origin that the record's session replicates, if any.
    async fn advance_session_origin(&mut self, rec: &DecodedRecord<'_>, to: Lsn) -> Result<(), IngestError> {
        match rec.origin {
            None | Some(0) => Ok(()),
            Some(origin) => self.advance_origin(origin, to, false).await,
        }
    }

    /// Advances an origin's progress, or sets it unconditionally if `force` is set.
    async fn advance_origin(&mut self, node: u16, to: Lsn, force: bool) -> Result<(), IngestError> {
        if node == DO_NOT_REPLICATE {
            return Ok(());
        }
        let now = match self.origins.get(&node) {
            Some(lsn) => *lsn,
            None => self.stored_origin(node).await?,
        };
        if to > now || force {
            self.origins.insert(node, to);
            self.put_image(repl_origin_key(node), encode_progress(to));
        }
        Ok(())
    }

    async fn stored_origin(&self, node: u16) -> Result<Lsn, IngestError> {
        let key = repl_origin_key(node);
        let value = self.store.get(key, self.committed).await?.unwrap_or_default();
        Ok(decode_progress(key, &value)?.unwrap_or(Lsn::INVALID))
    }
}

/// Groups ids by the page of a log that holds them, in order of first occurrence of the pages.
fn by_page(xids: Vec<u32>, per_page: u32) -> SmallVec<[(u32, Vec<u32>); 1]> {
    let mut pages = SmallVec::new();
    match xids.first().map(|xid| xid / per_page) {
        None => {}
        Some(page) if xids.iter().all(|xid| xid / per_page == page) => pages.push((page, xids)),
        Some(_) => xids.iter().for_each(|xid| add_to_page(&mut pages, xid / per_page, *xid)),
    }
    pages
}

fn add_to_page(pages: &mut SmallVec<[(u32, Vec<u32>); 1]>, page: u32, xid: u32) {
    match pages.iter_mut().find(|(known, _)| *known == page) {
        Some((_, list)) => list.push(xid),
        None => pages.push((page, vec![xid])),
    }
}
