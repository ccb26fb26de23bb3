//! Records about the WAL itself: checkpoints, counters, parameters.

use pageserver_api::key::PARAMETERS_KEY;
use pageserver_api::parameters::ClusterParameters;
use pageserver_api::reltag::SlruKind;
use postgres_formats::slru::COMMIT_TS_PER_PAGE;
use postgres_formats::xlog::{ParameterChange, XlogRecord};

use super::{IngestError, WalIngest};
use crate::directory::encode;
use crate::store::PageStore;

impl<S: PageStore> WalIngest<S> {
    pub(super) fn apply_xlog(&mut self, record: &XlogRecord<'_>) -> Result<(), IngestError> {
        match record {
            XlogRecord::CheckpointShutdown(checkpoint) => self.counters.shut_down(checkpoint),
            XlogRecord::CheckpointOnline(checkpoint) => self.counters.online(checkpoint),
            XlogRecord::NextOid(oid) => self.counters.next_oid(*oid),
            XlogRecord::FullPageWrites(on) => self.counters.full_page_writes(*on),
            XlogRecord::EndOfRecovery(end) => self.counters.timeline(end.timeline, end.previous_timeline),
            XlogRecord::CheckpointRedo(wal_level) => self.counters.wal_level(*wal_level),
            XlogRecord::ParameterChange(change) => self.change_parameters(change),
            XlogRecord::Noop
            | XlogRecord::Switch
            | XlogRecord::BackupEnd(_)
            | XlogRecord::RestorePoint { .. }
            | XlogRecord::FullPageImages { .. }
            | XlogRecord::OverwriteContrecord(_) => {}
        }
        Ok(())
    }

    fn change_parameters(&mut self, change: &ParameterChange) {
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        let mut wal_log_hints_changes = std::mem::take(&mut self.parameters.wal_log_hints_changes);
        if change.wal_log_hints != self.parameters.wal_log_hints {
            wal_log_hints_changes.push((self.lsn, change.wal_log_hints));
            self.store.set_wal_log_hints(self.lsn, change.wal_log_hints);
        }
        self.parameters = ClusterParameters {
            wal_log_hints_changes,
            wal_log_hints: change.wal_log_hints,
            track_commit_timestamp: change.track_commit_timestamp,
            wal_level: count(change.wal_level),
            max_connections: count(change.max_connections),
            max_worker_processes: count(change.max_worker_processes),
            max_wal_senders: count(change.max_wal_senders),
            max_prepared_transactions: count(change.max_prepared_xacts),
            max_locks_per_transaction: count(change.max_locks_per_xact),
            ..self.parameters
        };
        self.put_image(PARAMETERS_KEY, encode(&self.parameters));
        self.track_commit_timestamps(change.track_commit_timestamp);
    }

    /// Commit timestamps begin with the page of the next transaction; all are removed when they are switched off
    /// (`ActivateCommitTs`, `DeactivateCommitTs`).
    fn track_commit_timestamps(&mut self, on: bool) {
        if !self.counters.track_commit_ts(on) {
            return;
        }
        let page = self.counters.checkpoint().next_xid as u32 / COMMIT_TS_PER_PAGE;
        if !on {
            self.remove_slru_segments(SlruKind::CommitTs, |_| true);
        } else if !self.slru_page_exists(SlruKind::CommitTs, page) {
            self.zero_slru_page(SlruKind::CommitTs, page);
        }
    }
}
