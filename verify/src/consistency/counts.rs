//! Counts of replayed records, by record type.

use std::collections::{BTreeMap, BTreeSet};

use postgres_formats::rmgr::{RmgrId, record_name};
use postgres_formats::version::PgVersion;
use serde_json::{Value, json};

/// Counts for the records of one type and their blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) records: u64,
    pub(super) blocks: u64,
    /// Blocks compared with a check image.
    pub(super) compared: u64,
    /// Compared blocks that would have differed without the record.
    pub(super) changed: u64,
    pub(super) different: u64,
    pub(super) errors: u64,
    /// Full-page images applied.
    pub(super) images: u64,
    /// Blocks whose page was newer than the record, or did not exist.
    pub(super) skipped: u64,
}

impl Counts {
    fn add(&mut self, other: &Self) {
        let Self { records, blocks, compared, changed, different, errors, images, skipped } = other;
        self.records += records;
        self.blocks += blocks;
        self.compared += compared;
        self.changed += changed;
        self.different += different;
        self.errors += errors;
        self.images += images;
        self.skipped += skipped;
    }

    pub(super) fn to_json(self) -> Value {
        let Self { records, blocks, compared, changed, different, errors, images, skipped } = self;
        json!({
            "records": records, "blocks": blocks, "compared": compared, "changed": changed, "different": different,
            "errors": errors, "images": images, "skipped": skipped,
        })
    }
}

/// Counts of all record types of a version, including those that did not occur.
#[derive(Debug)]
pub(super) struct CountsByRecord(BTreeMap<&'static str, Counts>);

impl CountsByRecord {
    pub(super) fn new(version: PgVersion) -> Self {
        Self(record_names(version).into_iter().map(|name| (name, Counts::default())).collect())
    }

    pub(super) fn of(&mut self, name: &'static str) -> &mut Counts {
        self.0.entry(name).or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&'static str, &Counts)> {
        self.0.iter().map(|(name, counts)| (*name, counts))
    }

    pub(super) fn total(&self) -> Counts {
        let mut total = Counts::default();
        self.0.values().for_each(|counts| total.add(counts));
        total
    }
}

/// The names of all record types of a version.
fn record_names(version: PgVersion) -> BTreeSet<&'static str> {
    let of_rmgr = |rmid| (0..=0xF).map(move |opcode: u8| record_name(version, RmgrId(rmid), opcode << 4));
    let names = (0..=RmgrId::MAX_BUILTIN).flat_map(of_rmgr);
    names.filter(|name| !name.ends_with("/UNKNOWN")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_type_of_a_version_is_named() {
        // 116 to 118 operations, and six more names for those that also initialize a page.
        assert_eq!(PgVersion::ALL.map(|version| record_names(version).len()), [122, 123, 123, 124, 124]);
        assert!(!record_names(PgVersion::V16).contains("Heap2/PRUNE_ON_ACCESS"));
        assert!(record_names(PgVersion::V17).contains("Heap2/PRUNE_ON_ACCESS"));
    }
}
