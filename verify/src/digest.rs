//! A hash over everything that exists at an LSN, independent of its layout in layers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use parking_lot::Mutex;
use pgdata::keys::ExistingKeys;
use pgdata::listing::Listing;
use pgdata::{PageStore, TimelineStore};
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;

use crate::parallel;

/// Number of keys read at once.
const KEYS_PER_READ: u32 = 512;

/// The sum of the hashes of all (key, value) pairs, which does not depend on their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    /// The sum.
    pub sum: u128,
    /// Number of keys that have a value.
    pub keys: u64,
}

/// The keys to read at once.
#[derive(Clone, Debug)]
enum Job {
    Dense(Range<Key>),
    Sparse(Range<Key>),
}

/// Computes the digest of everything that exists as of `lsn`.
///
/// # Errors
/// If something cannot be read, or the timeline's Postgres version is unknown.
pub async fn digest(store: &Arc<TimelineStore>, lsn: Lsn) -> anyhow::Result<Digest> {
    let version = store.timeline().info().pg_version;
    let version = PgVersion::from_major(version).ok_or_else(|| anyhow::anyhow!("unknown version {version}"))?;
    let keys = ExistingKeys::of(&Listing::new(store.as_ref(), lsn), version).await?;
    let total = Arc::new(Mutex::new(Digest::default()));
    let work = {
        let (store, total) = (Arc::clone(store), Arc::clone(&total));
        move |job| {
            let (store, total) = (Arc::clone(&store), Arc::clone(&total));
            async move {
                let values = match job {
                    Job::Dense(range) => Listing::new(store.as_ref(), lsn).dense(range).await?,
                    Job::Sparse(range) => store.get_many(&KeySpace::single(range), lsn).await?,
                };
                total.lock().add(&values);
                Ok(())
            }
        }
    };
    parallel::for_each(jobs(keys), work).await?;
    let total = *total.lock();
    Ok(total)
}

fn jobs(keys: ExistingKeys) -> Vec<Job> {
    let mut jobs = Vec::new();
    for range in keys.dense {
        let mut start = range.start;
        while start < range.end {
            let end = start.add(KEYS_PER_READ).min(range.end);
            jobs.push(Job::Dense(start..end));
            start = end;
        }
    }
    jobs.extend(keys.sparse.into_iter().map(Job::Sparse));
    jobs
}

impl Digest {
    /// Adds `values`. An empty value marks a sparse key as removed, and does not count.
    fn add(&mut self, values: &BTreeMap<Key, Bytes>) {
        for (key, value) in values.iter().filter(|(_, value)| !value.is_empty()) {
            let hash = fnv1a(fnv1a(OFFSET_BASIS, &key.to_bytes()), value);
            self.sum = self.sum.wrapping_add(hash);
            self.keys += 1;
        }
    }
}

const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013B;

/// 128-bit FNV-1a.
fn fnv1a(hash: u128, bytes: &[u8]) -> u128 {
    bytes.iter().fold(hash, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_hashes() {
        assert_eq!(fnv1a(OFFSET_BASIS, b""), OFFSET_BASIS);
        assert_eq!(fnv1a(OFFSET_BASIS, b"a"), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn jobs_cover_all_keys_once() {
        let range = |start: u32, end: u32| Key { field6: start, ..Key::MIN }..Key { field6: end, ..Key::MIN };
        let keys = ExistingKeys { dense: vec![range(0, 1300), range(5000, 5001)], sparse: vec![range(7000, 8000)] };
        let covered: u32 = jobs(keys)
            .iter()
            .map(|job| match job {
                Job::Dense(range) => range.end.field6 - range.start.field6,
                Job::Sparse(_) => 0,
            })
            .sum();
        assert_eq!(covered, 1301);
    }
}
