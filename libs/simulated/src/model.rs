//! A model of what a timeline must hold: all versions of a few keys, and changes drawn by whoever tests.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;
use pageserver_api::key::{Key, SPARSE_FIRST, slru_block_key};
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::SlruKind;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// Where history begins.
pub const IMPORT_LSN: Lsn = Lsn(0x1000);

/// Transactions per `pg_xact` page.
const XACTS_PER_PAGE: u32 = 32768;

/// The keys of the model: six pages of the commit log and six single values, two of them sparse.
pub fn keys() -> Vec<Key> {
    let pages = (0..6).map(|page| slru_block_key(SlruKind::Clog, 0, page));
    let files = (0..4).map(|n| Key { field1: 3, field6: 10 + n, ..Key::MIN });
    let sparse = (0..2).map(|n| Key { field1: SPARSE_FIRST, field6: 5 * n, ..Key::MIN });
    pages.chain(files).chain(sparse).collect()
}

/// The key whose value says which pages are not in use.
pub fn marker() -> Key {
    Key { field1: SPARSE_FIRST, ..Key::MIN }
}

/// The pages that are not in use, by the marker's value.
pub fn unused(value: Option<&Bytes>) -> Vec<Key> {
    let bits = value.and_then(|value| value.first()).filter(|bits| **bits < 96).map_or(0, |bits| bits % 64);
    (0..6).filter(|page| bits >> page & 1 == 1).map(|page| slru_block_key(SlruKind::Clog, 0, page)).collect()
}

/// Whether `key` is a page of the commit log, to which records apply.
pub fn is_page(key: &Key) -> bool {
    key.to_slru_block().is_some()
}

/// All versions of all keys.
#[derive(Clone, Debug, Default)]
pub struct Model {
    versions: BTreeMap<Key, BTreeMap<Lsn, Value>>,
}

impl Model {
    /// Adds a version.
    pub fn put(&mut self, key: Key, lsn: Lsn, value: Value) {
        self.versions.entry(key).or_default().insert(lsn, value);
    }

    /// Whether the key has an image that changes can build on.
    pub fn exists(&self, key: &Key) -> bool {
        self.versions.get(key).is_some_and(|versions| !versions.is_empty())
    }

    /// The value of `key` as of `lsn`.
    pub fn value(&self, key: &Key, lsn: Lsn) -> Option<Bytes> {
        let mut records: Vec<&WalRecord> = Vec::new();
        for (_, version) in self.versions.get(key)?.range(..=lsn).rev() {
            match version {
                Value::Image(image) if records.is_empty() => return Some(image.clone()),
                Value::Image(image) => {
                    let mut value = image.to_vec();
                    records.iter().rev().for_each(|record| apply(&mut value, key, record));
                    return Some(Bytes::from(value));
                }
                Value::WalRecord(record) => records.push(record),
            }
        }
        None
    }

    /// The keys in `range` that ever had a value.
    pub fn keys(&self, range: &Range<Key>) -> impl Iterator<Item = Key> {
        self.versions.range(range.clone()).map(|(key, _)| *key)
    }

    /// All values of keys in `range` as of `lsn`.
    pub fn values(&self, range: &Range<Key>, lsn: Lsn) -> BTreeMap<Key, Bytes> {
        self.keys(range).filter_map(|key| Some((key, self.value(&key, lsn)?))).collect()
    }

    /// The pages that are not in use as of `lsn`.
    pub fn unused(&self, lsn: Lsn) -> Vec<Key> {
        unused(self.value(&marker(), lsn).as_ref())
    }

    /// Drops everything above `lsn`, as a crash does.
    pub fn truncate(&mut self, lsn: Lsn) {
        self.versions.values_mut().for_each(|versions| versions.retain(|at, _| *at <= lsn));
    }

    /// Every LSN at which something changed.
    pub fn lsns(&self) -> Vec<Lsn> {
        let mut lsns: Vec<Lsn> = self.versions.values().flat_map(|versions| versions.keys().copied()).collect();
        lsns.sort_unstable();
        lsns.dedup();
        lsns
    }
}

/// The model's own implementation of commit log records.
fn apply(page: &mut [u8], key: &Key, record: &WalRecord) {
    let (xids, bits) = match record {
        WalRecord::ClogSetCommitted { xids, .. } => (xids, 1),
        WalRecord::ClogSetAborted { xids } => (xids, 2),
        other => panic!("the model knows nothing of {other:?}"),
    };
    let Some((_, _, page_number)) = key.to_slru_block() else { panic!("{key} is no page of the transaction log") };
    for xid in xids {
        assert_eq!(xid / XACTS_PER_PAGE, page_number);
        let (byte, shift) = ((xid % XACTS_PER_PAGE / 4) as usize, xid % 4 * 2);
        page[byte] = page[byte] & !(3 << shift) | bits << shift;
    }
}

/// A change drawn by a test: a key number, and a seed for what happens to it.
pub type Change = (usize, u32);

/// The version that `change` creates, given the model's state.
pub fn version(model: &Model, change: Change) -> (Key, Value) {
    let all = keys();
    let (number, seed) = change;
    let key = all[number % all.len()];
    let Some((_, _, page)) = key.to_slru_block() else {
        return (key, Value::Image(Bytes::from(vec![seed as u8; seed as usize % 300])));
    };
    if !model.exists(&key) || seed.is_multiple_of(4) {
        return (key, Value::Image(Bytes::from(vec![seed as u8; 8192])));
    }
    let xids = (0..1 + seed % 3).map(|n| page * XACTS_PER_PAGE + (seed / 7 + n * 5) % XACTS_PER_PAGE).collect();
    let record = match seed % 2 {
        0 => WalRecord::ClogSetCommitted { xids, timestamp: i64::from(seed) },
        _ => WalRecord::ClogSetAborted { xids },
    };
    (key, Value::WalRecord(record))
}

/// Puts one record's changes at `lsn` into the batch and the model. A key changes at most once per record. Pages that
/// are in use again get an image.
pub fn put_record(model: &mut Model, batch: &mut SerializedValueBatch, lsn: Lsn, changes: &[Change]) {
    let mut seen = Vec::new();
    let unused_before = model.unused(Lsn::MAX);
    // First, so that the image of a page comes before its changes.
    let (markers, others): (Vec<_>, Vec<_>) = changes.iter().map(|change| version(model, *change)).partition(is_marker);
    let mut values: Vec<(Key, Value)> = markers.into_iter().take(1).collect();
    if let Some((_, Value::Image(value))) = values.first() {
        let unused_now = unused(Some(value));
        let again = unused_before.into_iter().filter(|key| !unused_now.contains(key));
        let images: Vec<_> = again.map(|key| (key, Value::Image(Bytes::from(vec![lsn.0 as u8; 8192])))).collect();
        values.extend(images);
    }
    for (key, value) in values.into_iter().chain(others) {
        if !seen.contains(&key) {
            seen.push(key);
            batch.put_key(&key, lsn, &value).unwrap_or_else(|error| panic!("{key} at {lsn}: {error}"));
            model.put(key, lsn, value);
        }
    }
}

fn is_marker((key, _): &(Key, Value)) -> bool {
    *key == marker()
}
