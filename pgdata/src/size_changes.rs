//! Last changes of relation sizes, which let a reader cache a relation's size without asking again.
//!
//! Sizes and existence are values of their own keys ([`Key::to_rel_size`], [`Key::to_rel_entry`]). This records the
//! LSN at which each of these keys last changed since the timeline was opened.

use std::collections::HashMap;

use engine::observer::WriteObserver;
use engine::tenant::timeline::Timeline;
use pageserver_api::key::Key;
use pageserver_api::reltag::RelTag;
use parking_lot::RwLock;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::ValueMeta;

/// Maximum number of forks remembered, about 4 MiB. Beyond that, all count as changed at the newest LSN noted.
const MAX_FORKS: usize = 100_000;

/// The last changes of relation sizes in one timeline.
#[derive(Debug)]
pub struct SizeChanges {
    changes: RwLock<Changes>,
}

/// An LSN since which the fork has kept its size and existence, up to the timeline's last record. If nobody observed
/// changes ([`SizeChanges::observer`]), that is the last record itself.
pub fn unchanged_since(timeline: &Timeline, rel: RelTag) -> Lsn {
    match timeline.observer::<SizeChanges>() {
        Some(changes) => changes.unchanged_since(rel),
        None => timeline.last_record_lsn(),
    }
}

#[derive(Debug)]
struct Changes {
    last: HashMap<RelTag, Lsn>,
    /// Forks that are not listed may have changed up to here.
    others: Lsn,
    newest: Lsn,
}

impl SizeChanges {
    /// Nothing is known about changes up to `opened_at`.
    fn new(opened_at: Lsn) -> Self {
        let changes = Changes { last: HashMap::new(), others: opened_at, newest: opened_at };
        Self { changes: RwLock::new(changes) }
    }

    /// The observer for `PageServerConf::observer`, which saves repeated lookups of sizes.
    pub fn observer(opened_at: Lsn) -> Box<dyn WriteObserver> {
        Box::new(Self::new(opened_at))
    }

    fn unchanged_since(&self, rel: RelTag) -> Lsn {
        let changes = self.changes.read();
        changes.last.get(&rel).copied().unwrap_or(changes.others)
    }
}

impl WriteObserver for SizeChanges {
    fn note(&self, values: &[ValueMeta]) {
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
    }
}
