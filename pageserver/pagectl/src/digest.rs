//! `pagectl digest`: one hash over everything that exists at an LSN, the same however it is laid out in layers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pageserver::pgdata::PageStore;
use pageserver::pgdata::keys::ExistingKeys;
use pageserver::pgdata::listing::Listing;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use parking_lot::Mutex;
use postgres_formats::version::PgVersion;
use serde_json::json;
use utils::lsn::Lsn;

use crate::store::{Store, lsn_to_read};
use crate::{output, parallel};

/// Keys read at once.
const KEYS_PER_READ: u32 = 512;

/// Sum of the hashes of all (key, value): in whatever order they come, the sum is the same.
#[derive(Clone, Copy, Debug, Default)]
struct Digest {
    sum: u128,
    keys: u64,
}

/// What is read in one go.
#[derive(Clone, Debug)]
enum Job {
    Dense(Range<Key>),
    Sparse(Range<Key>),
}

/// Runs the command.
pub(crate) async fn run(store: &Store, lsn: Option<Lsn>) -> anyhow::Result<()> {
    let opened = Arc::new(store.open().await?);
    let lsn = lsn_to_read(&opened, lsn)?;
    let version = opened.timeline().info().pg_version;
    let version = PgVersion::from_major(version).ok_or_else(|| anyhow::anyhow!("unknown version {version}"))?;
    let keys = ExistingKeys::of(&Listing::new(opened.as_ref(), lsn), version).await?;
    let total = Arc::new(Mutex::new(Digest::default()));
    let work = {
        let total = Arc::clone(&total);
        move |job| {
            let (opened, total) = (Arc::clone(&opened), Arc::clone(&total));
            async move {
                let values = match job {
                    Job::Dense(range) => Listing::new(opened.as_ref(), lsn).dense(range).await?,
                    Job::Sparse(range) => opened.get_many(&KeySpace::single(range), lsn).await?,
                };
                total.lock().add(&values);
                Ok(())
            }
        }
    };
    parallel::for_each(jobs(keys), work).await?;
    let Digest { sum, keys } = *total.lock();
    let result = json!({ "digest": format!("{sum:032x}"), "keys": keys, "lsn": lsn.to_string() });
    output::finish(store.common.json, &result, format!("digest {sum:032x} of {keys} keys as of LSN {lsn}"));
    Ok(())
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
    /// A sparse key with an empty value is one that was removed: it does not count.
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

/// FNV-1a with 128 bits.
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
