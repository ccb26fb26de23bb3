//! Finds the layers that reads as of an LSN may visit, with the search that reads use.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use utils::lsn::Lsn;

use super::{Layer, LayerMap};

/// Layers by the ids of their files.
pub type Marked = HashMap<u64, Arc<Layer>>;

/// What reads take of a layer: keys, and LSNs of their versions.
pub type Takes = Vec<(Range<Key>, Range<Lsn>)>;

/// What a read takes from a layer.
#[derive(Clone, Debug)]
pub struct Visit {
    /// Keys.
    pub keys: Range<Key>,
    /// LSNs of their versions.
    pub lsns: Range<Lsn>,
    /// The layer.
    pub layer: Arc<Layer>,
}

/// Adds to `marked` all layers that a read of `keys` below `end` (exclusive) visits if no key is complete before an
/// image ends the search. Returns the keys for which no image does: reads of them go on in the ancestor.
pub fn mark(map: &LayerMap, keys: &KeySpace, end: Lsn, marked: &mut Marked) -> KeySpace {
    visit(map, keys, end, |visit| {
        marked.entry(visit.layer.identity().file_id).or_insert(visit.layer);
    })
}

/// Passes the visits of such a read to `see`, and returns the same.
pub fn visit(map: &LayerMap, keys: &KeySpace, end: Lsn, mut see: impl FnMut(Visit)) -> KeySpace {
    let mut todo: Vec<(Range<Key>, Lsn)> = keys.ranges().iter().map(|range| (range.clone(), end)).collect();
    let mut rest: Vec<Range<Key>> = Vec::new();
    while let Some((range, end)) = todo.pop() {
        let mut uncovered = range.start;
        for result in map.search(&range, end) {
            if uncovered < result.keys.start {
                rest.push(uncovered..result.keys.start);
            }
            uncovered = result.keys.end;
            if result.layer.desc().is_delta {
                todo.push((result.keys.clone(), result.lsn_floor));
            }
            see(Visit { keys: result.keys, lsns: result.lsn_floor..end, layer: result.layer });
        }
        if uncovered < range.end {
            rest.push(uncovered..range.end);
        }
    }
    KeySpace::from_ranges(rest)
}
