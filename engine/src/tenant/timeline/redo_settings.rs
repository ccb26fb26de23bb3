//! What redo depends on, by the LSN of the record: `wal_log_hints` may change in the course of history.

use std::sync::Arc;

use redo::RedoContext;
use utils::lsn::Lsn;

/// The settings for all LSNs. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct RedoSettings {
    at_import: RedoContext,
    /// Ends of the records that changed `wal_log_hints`, oldest first, and the new value.
    wal_log_hints: Arc<Vec<(Lsn, bool)>>,
}

impl From<RedoContext> for RedoSettings {
    fn from(at_import: RedoContext) -> Self {
        Self { at_import, wal_log_hints: Arc::default() }
    }
}

impl RedoSettings {
    /// Notes a change by the record that ends at `lsn`. Ignores a change that is already known.
    pub(crate) fn set_wal_log_hints(&mut self, lsn: Lsn, on: bool) {
        if self.wal_log_hints.last().is_none_or(|(last, _)| *last < lsn) {
            Arc::make_mut(&mut self.wal_log_hints).push((lsn, on));
        }
    }

    /// All changes of `wal_log_hints`, oldest first.
    pub(crate) fn wal_log_hints_changes(&self) -> Vec<(Lsn, bool)> {
        self.wal_log_hints.to_vec()
    }

    /// These settings for records after `lsn`, the branch point, and those of `ancestor` before.
    pub(crate) fn continuing(mut self, ancestor: RedoSettings, lsn: Lsn) -> Self {
        let shared = ancestor.wal_log_hints.iter().copied().filter(|(changed, _)| *changed <= lsn);
        let own = self.wal_log_hints.iter().copied().filter(|(changed, _)| *changed > lsn);
        self.wal_log_hints = Arc::new(shared.chain(own).collect());
        Self { at_import: ancestor.at_import, ..self }
    }

    /// The settings for a record that ends at `lsn`.
    pub(crate) fn at(&self, lsn: Lsn) -> RedoContext {
        let before = self.wal_log_hints.partition_point(|(changed, _)| *changed < lsn);
        let latest = before.checked_sub(1).and_then(|at| self.wal_log_hints.get(at));
        let wal_log_hints = latest.map_or(self.at_import.wal_log_hints, |(_, on)| *on);
        RedoContext { wal_log_hints, ..self.at_import }
    }
}

#[cfg(test)]
mod tests {
    use postgres_formats::version::PgVersion;

    use super::*;

    #[test]
    fn each_record_has_the_settings_of_its_time() {
        let context = RedoContext { version: PgVersion::V15, data_checksums: false, wal_log_hints: false };
        let mut settings = RedoSettings::from(context);
        settings.set_wal_log_hints(Lsn(80), true);
        settings.set_wal_log_hints(Lsn(160), false);
        settings.set_wal_log_hints(Lsn(80), false);
        let hints = |lsn| settings.at(Lsn(lsn)).wal_log_hints;
        assert_eq!([8, 80, 88, 160, 168].map(hints), [false, false, true, true, false]);
        let mut branch = RedoSettings::from(RedoContext { wal_log_hints: true, ..context });
        branch.set_wal_log_hints(Lsn(120), false);
        branch.set_wal_log_hints(Lsn(240), true);
        let branch = branch.continuing(settings, Lsn(100));
        let hints = |lsn| branch.at(Lsn(lsn)).wal_log_hints;
        assert_eq!([8, 88, 120, 128, 168, 248].map(hints), [false, true, true, false, false, true]);
    }
}
