//! Fast path for the records that make up nearly all WAL: changes of existing blocks, and commits that do nothing
//! more. They need nothing from the store, so they are applied synchronously.

use pageserver_api::reltag::{BlockNumber, RelTag};
use postgres_formats::record::{DecodedRecord, decode_into};
use postgres_formats::xact::XactEnd;
use wal_decoder::interpret::{BlockChanges, MetadataRecord, block_changes, changes_only_pages, metadata};
use wal_decoder::stream::RecordRef;

use super::known_relations::Relations;
use super::{IngestError, WalIngest};
use crate::store::PageStore;

impl<S: PageStore> WalIngest<S> {
    /// Begins the record, and applies it if the fast path covers it. Otherwise applies nothing and returns false.
    pub(super) fn ingest_fast(&mut self, record: RecordRef<'_>) -> Result<bool, IngestError> {
        let RecordRef { start, end, bytes } = record;
        self.begin_record(start, end)?;
        let mut rec = DecodedRecord::nothing(self.version);
        decode_into(&mut rec, bytes).map_err(|source| IngestError::Record { lsn: start, source })?;
        let not_understood = |source| IngestError::Interpret { lsn: start, source };
        let mut changes = BlockChanges::new();
        block_changes(&rec, &self.tablespaces, &mut changes).map_err(not_understood)?;
        if !changes.iter().all(|change| self.relations.has_block(change.rel, change.blkno)) {
            return Ok(false);
        }
        let commit = match changes_only_pages(&rec) {
            true => None,
            false => match metadata(&rec).map_err(not_understood)? {
                None => None,
                Some(MetadataRecord::Commit(commit)) if is_plain_commit(&rec, &commit) => Some(commit),
                Some(_) => return Ok(false),
            },
        };
        self.counters.see_xid(rec.header.xid);
        for change in &changes {
            change.put(&rec, bytes, end, &mut self.batch).map_err(|error| self.inconsistent(error))?;
        }
        if let Some(commit) = commit {
            self.put_commit(&rec, &commit);
        }
        self.end_record(start, end);
        Ok(true)
    }
}

/// Whether the commit changes only the transaction logs.
fn is_plain_commit(rec: &DecodedRecord<'_>, commit: &XactEnd<'_>) -> bool {
    commit.dropped_rels.is_empty() && commit.twophase_xid.is_none() && commit.origin.is_none() && rec.origin.is_none()
}

impl Relations {
    /// Whether the fork is known to have this block, without asking the store.
    fn has_block(&self, rel: RelTag, blkno: BlockNumber) -> bool {
        self.known_size(rel).is_some_and(|size| blkno < size)
    }
}
