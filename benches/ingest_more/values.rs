//! The values of a case, made before the clock runs, and told from each other when they are read.

use std::ops::Range;

use engine::tenant::storage_layer::ReconstructState;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::bin_ser::BeSer;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::artifact::Validity;
use crate::case::{Case, START, VOLUME_MIB, stamped};

/// Values of one batch, as in `bench_ingest`.
const BATCH: u32 = 16;
/// So many different contents take turns. A prime number, so that no value has the contents of one that is a round
/// number away from it, and few, so that making a batch costs as little as in `bench_ingest`.
const CONTENTS: u32 = 61;

/// See the module's documentation.
pub struct Values {
    case: Case,
    count: u32,
    contents: Vec<Value>,
    /// Bytes of one value in a batch.
    size: usize,
}

impl Values {
    /// The first `volume_mib` of a case, whose keys must ascend.
    pub fn new(case: Case, volume_mib: usize) -> anyhow::Result<Self> {
        let contents: Vec<Value> = (0..CONTENTS).map(|i| stamped(&case, i)).collect();
        let size = contents.first().map_or(Ok(0), |value| value.serialized_size())? as usize;
        let count = (u64::from(case.count()) * volume_mib as u64 / VOLUME_MIB as u64) as u32;
        Ok(Self { case, count, contents, size })
    }

    /// Number of values.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Bytes of the values, without what a batch adds to each.
    pub fn bytes(&self) -> u64 {
        u64::from(self.count) * self.case.value_bytes as u64
    }

    fn value(&self, i: u32) -> &Value {
        &self.contents[(i % CONTENTS) as usize]
    }

    /// All values in batches, each with the number of the value after it.
    pub fn batches(&self) -> impl Iterator<Item = (SerializedValueBatch, u32)> {
        (0..self.count).step_by(BATCH as usize).map(|first| {
            let end = self.count.min(first + BATCH);
            let of = |i| {
                let (key, lsn) = self.case.place(i);
                (key.to_compact(), lsn, self.size, self.value(i).clone())
            };
            (SerializedValueBatch::from_values((first..end).map(of).collect()), end)
        })
    }

    /// The keys of some values.
    pub fn keys(&self, numbers: &Range<u32>) -> KeySpace {
        let last = self.case.place(numbers.end - 1).0;
        KeySpace::single(self.case.place(numbers.start).0..last.next())
    }

    /// All LSNs up to that of the last of some values.
    pub fn lsns(&self, numbers: &Range<u32>) -> Range<Lsn> {
        START..self.case.place(numbers.end - 1).1 + 1
    }

    /// Compares what a read of some values has found. Anything else that it has found counts as different.
    pub fn compare(&self, numbers: Range<u32>, state: ReconstructState, validity: &mut Validity) {
        let mut found = state.into_histories();
        for i in numbers {
            let (key, lsn): (Key, Lsn) = self.case.place(i);
            match found.remove(&key) {
                Some(history) => {
                    let image = history.image.map(|(at, image)| (at, Value::Image(image)));
                    let is_same = image.is_some_and(|(at, image)| at == lsn && image == *self.value(i));
                    validity.compare(is_same && history.records.is_empty());
                }
                None => validity.missing(),
            }
        }
        found.values().for_each(|_| validity.compare(false));
    }
}
