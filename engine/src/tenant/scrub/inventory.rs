//! Compares what is named with what is there. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::tenant::remote::{LayerList, parse_generation};
use crate::tenant::storage_layer::LayerFileName;
use remote_storage::INDEX_PART_PREFIX;

/// An existing object or file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct There {
    pub(super) size: u64,
    /// Seconds since it was written; `None` if not known.
    pub(super) age: Option<u64>,
    /// When it was written, in seconds since 1970; 0 if not known.
    pub(super) modified: i64,
}

/// What distinguishes orphans in the bucket from objects that somebody still needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    /// The newest generation that was given out.
    pub(super) generation: u32,
    /// The generation of the current index part, if there is one.
    pub(super) index_part: Option<u32>,
    /// The current index part is a mark of deletion.
    pub(super) deleted: bool,
    /// In seconds: younger objects may be about to be named.
    pub(super) grace: u64,
}

/// Objects of a timeline that nobody needs: layers not in `named`, and index parts and lists of layers that newer ones
/// have superseded.
/// Objects of a newer owner, young objects, and foreign objects are not orphans.
pub(super) fn orphans(
    there: &BTreeMap<String, There>,
    named: &BTreeSet<String>,
    newest: Newest,
) -> Vec<(String, &'static str)> {
    let old_enough = |it: &There| it.age.is_some_and(|age| age >= newest.grace);
    let last_list = there.keys().filter_map(|name| LayerList::parse(name)).max();
    // Besides its own mark of deletion, a server may have objects of a timeline that it is recreating.
    let being_made = |generation| newest.deleted && newest.index_part.is_some_and(|mark| generation >= mark);
    let is_orphan = |name: &str| {
        if let Some(digits) = name.strip_prefix(INDEX_PART_PREFIX) {
            let generation = parse_generation(digits)?;
            let replaced = newest.index_part.is_some_and(|counts| generation < counts);
            return replaced.then_some("a newer index part has replaced it");
        }
        if let Some(list) = LayerList::parse(name) {
            let replaced = newest.index_part.is_some() && last_list > Some(list) && !being_made(list.generation);
            return replaced.then_some("a newer list of layers has replaced it");
        }
        let generation = name.parse::<LayerFileName>().ok()?.generation;
        let unnamed = !named.contains(name) && generation <= newest.generation && !being_made(generation);
        // Without an index part it is unknown what is needed.
        (unnamed && newest.index_part.is_some()).then_some("no index part names it")
    };
    there
        .iter()
        .filter(|(_, it)| old_enough(it))
        .filter_map(|(name, _)| Some((name.clone(), is_orphan(name)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenant::storage_layer::LayerName;
    use pageserver_api::key::Key;
    use utils::lsn::Lsn;

    fn layer(lsn: u64, generation: u32) -> String {
        LayerName::Image { key_range: Key::MIN..Key::MAX, lsn: Lsn(lsn) }.file_name(generation, lsn).to_string()
    }

    #[test]
    fn orphans_are_old_unnamed_and_of_nobody_newer() {
        let old = There { size: 1, age: Some(100), modified: 1 };
        let there = BTreeMap::from([
            (layer(1, 1), old),
            (layer(2, 1), old),
            (layer(3, 1), There { age: Some(99), ..old }),
            (layer(4, 5), old),
            (layer(5, 1), There { age: None, ..old }),
            ("index_part-00000001".to_owned(), old),
            ("index_part-00000003".to_owned(), old),
            ("index_part-00000009".to_owned(), old),
            ("layers-00000001-0000000000000007".to_owned(), old),
            ("layers-00000003-0000000000000007".to_owned(), old),
            ("notes.txt".to_owned(), old),
        ]);
        let named = BTreeSet::from([layer(1, 1)]);
        let newest = Newest { generation: 4, index_part: Some(3), deleted: false, grace: 100 };
        let names = |newest| {
            let found = orphans(&there, &named, newest);
            found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let replaced = ["index_part-00000001", "layers-00000001-0000000000000007"].map(str::to_owned);
        assert_eq!(names(newest), [&[layer(2, 1)][..], &replaced].concat());
        assert_eq!(names(Newest { index_part: None, ..newest }), Vec::<String>::new());
        assert_eq!(names(Newest { grace: 101, ..newest }), Vec::<String>::new());
        assert_eq!(names(Newest { deleted: true, ..newest }), names(newest));
        let importing = Newest { deleted: true, index_part: Some(1), ..newest };
        assert_eq!(names(importing), Vec::<String>::new());
    }
}
