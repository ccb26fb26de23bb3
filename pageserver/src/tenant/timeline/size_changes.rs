//! When sizes changed last: what lets a reader keep a relation's size without asking for it again.
//!
//! Sizes and existence are values of keys of their own ([`Key::to_rel_size`], [`Key::to_rel_entry`]). Here is noted, of
//! what has come in since the timeline was opened, which of these keys changed last at which LSN.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use pageserver_api::key::Key;
use pageserver_api::reltag::RelTag;
use parking_lot::RwLock;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::ValueMeta;

/// Forks remembered; some 4 MiB. Beyond that all count as changed at the newest LSN noted.
const MAX_FORKS: usize = 100_000;

static NEXT_INSTANCE: AtomicU64 = AtomicU64::new(1);

/// The last changes of sizes.
#[derive(Debug)]
pub(crate) struct SizeChanges {
    /// Names this timeline as opened now, unlike any other and unlike itself opened again.
    pub(crate) instance: u64,
    changes: RwLock<Changes>,
}

#[derive(Debug)]
struct Changes {
    last: HashMap<RelTag, Lsn>,
    /// Forks that are not listed may have changed up to here.
    others: Lsn,
    newest: Lsn,
}

impl SizeChanges {
    /// Nothing is known of changes up to `opened_at`.
    pub(crate) fn new(opened_at: Lsn) -> Self {
        let changes = Changes { last: HashMap::new(), others: opened_at, newest: opened_at };
        Self { instance: NEXT_INSTANCE.fetch_add(1, Ordering::Relaxed), changes: RwLock::new(changes) }
    }

    /// Notes what a batch changes. Must come before the batch's LSNs count as written.
    pub(crate) fn note(&self, values: &[ValueMeta]) {
        let changed = |meta: &ValueMeta| {
            let key = Key::from_compact(meta.key);
            Some((key.to_rel_size().or_else(|| key.to_rel_entry())?, meta.lsn))
        };
        let mut changed = values.iter().filter_map(changed).peekable();
        if changed.peek().is_none() {
            return;
        }
        let mut changes = self.changes.write();
        for (rel, lsn) in changed {
            changes.note(rel, lsn);
        }
    }

    /// An LSN after which the fork has kept its size, up to the last record.
    pub(crate) fn unchanged_since(&self, rel: RelTag) -> Lsn {
        let changes = self.changes.read();
        changes.last.get(&rel).copied().unwrap_or(changes.others)
    }
}

impl Changes {
    fn note(&mut self, rel: RelTag, lsn: Lsn) {
        self.newest = self.newest.max(lsn);
        let known = self.last.len();
        if known >= MAX_FORKS && !self.last.contains_key(&rel) {
            self.last = HashMap::new();
            self.others = self.newest;
            return;
        }
        let last = self.last.entry(rel).or_default();
        *last = lsn.max(*last);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pageserver_api::key::{rel_block_key, rel_entry_key, rel_size_key};
    use pageserver_api::value::Value;
    use wal_decoder::serialized_batch::SerializedValueBatch;

    use super::*;

    fn note(changes: &SizeChanges, keys: &[(Key, u64)]) {
        let mut batch = SerializedValueBatch::default();
        for (key, lsn) in keys {
            batch.put(key.to_compact(), Lsn(*lsn), &Value::Image(Bytes::from_static(b"x"))).unwrap();
        }
        changes.note(batch.metadata());
    }

    #[test]
    fn sizes_and_existence_count_and_blocks_do_not() {
        let rel = |relnode| RelTag { spcnode: 1663, dbnode: 5, relnode, forknum: 0 };
        let changes = SizeChanges::new(Lsn(100));
        assert_eq!(changes.unchanged_since(rel(1)), Lsn(100));
        note(&changes, &[(rel_block_key(rel(1), 7), 110), (rel_size_key(rel(2)), 120), (rel_entry_key(rel(3)), 130)]);
        assert_eq!([1, 2, 3].map(|n| changes.unchanged_since(rel(n)).0), [100, 120, 130]);
        note(&changes, &[(rel_size_key(rel(3)), 140), (rel_size_key(rel(2).with_fork(1)), 150)]);
        assert_eq!([1, 2, 3].map(|n| changes.unchanged_since(rel(n)).0), [100, 120, 140]);
        let many: Vec<_> = (1000..1000 + MAX_FORKS as u32).map(|n| (rel_size_key(rel(n)), u64::from(n))).collect();
        note(&changes, &many);
        assert_eq!(changes.unchanged_since(rel(1)), changes.unchanged_since(rel(2)));
        assert!(changes.unchanged_since(rel(1)) > Lsn(100_000));
        assert_ne!(changes.instance, SizeChanges::new(Lsn(100)).instance);
    }
}
