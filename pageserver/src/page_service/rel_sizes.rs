//! Cache of relation sizes, so that not every request for a page has to look one up.
//!
//! A size read at an LSN is valid from the last change before that LSN up to the next change after it. A timeline
//! knows when each fork last changed ([`size_changes::unchanged_since`]): a size read after that is valid for all
//! LSNs since then. A size read before that is cached only for its exact LSN, because standbys and branches of the
//! past ask for the same LSN again and again.

use pageserver_api::reltag::{BlockNumber, RelTag};
use quick_cache::sync::Cache;
use utils::lsn::Lsn;

use engine::tenant::timeline::Timeline;
use errors::StorageError;
use pgdata::PageStore;
use pgdata::listing::Listing;
use pgdata::size_changes;

/// Maximum number of cached sizes of each kind: about 10 MiB.
const ENTRIES: usize = 64 * 1024;

/// The number of blocks; `None` if the fork does not exist.
pub(super) type Size = Option<BlockNumber>;

/// Cached sizes of all timelines.
pub(super) struct RelSizes {
    /// The newest known size, and the LSN at which it was read.
    latest: Cache<(u64, RelTag), (Lsn, Size)>,
    /// Sizes at LSNs before the last change.
    past: Cache<(u64, RelTag, Lsn), Size>,
}

/// A size that is not cached, to be read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unknown {
    pub(super) rel: RelTag,
    unchanged_since: Lsn,
}

impl RelSizes {
    pub(super) fn new() -> Self {
        Self { latest: Cache::new(ENTRIES), past: Cache::new(ENTRIES) }
    }

    /// The size of `rel` as of `lsn`, which must not be after the timeline's last record.
    pub(super) async fn get<S: PageStore>(
        &self,
        timeline: &Timeline,
        store: &S,
        rel: RelTag,
        lsn: Lsn,
    ) -> Result<Size, StorageError> {
        let unknown = match self.known(timeline, rel, lsn) {
            Ok(size) => return Ok(size),
            Err(unknown) => unknown,
        };
        let size = Listing::new(store, lsn).rel_size(rel).await?;
        self.learn(timeline, unknown, lsn, size);
        Ok(size)
    }

    /// The size of `rel` as of `lsn`, if it is cached. If not, whoever reads it has to ask first, and to pass on what
    /// this returns: a change meanwhile then makes what is cached useless, not wrong.
    pub(super) fn known(&self, timeline: &Timeline, rel: RelTag, lsn: Lsn) -> Result<Size, Unknown> {
        let unchanged_since = size_changes::unchanged_since(timeline, rel);
        self.find(timeline.instance(), rel, lsn, unchanged_since).ok_or(Unknown { rel, unchanged_since })
    }

    /// Caches a size as of `lsn` that was read after [`RelSizes::known`] did not know it.
    pub(super) fn learn(&self, timeline: &Timeline, unknown: Unknown, lsn: Lsn, size: Size) {
        self.keep(timeline.instance(), unknown.rel, lsn, unknown.unchanged_since, size);
    }

    fn find(&self, instance: u64, rel: RelTag, lsn: Lsn, unchanged_since: Lsn) -> Option<Size> {
        if lsn < unchanged_since {
            return self.past.get(&(instance, rel, lsn));
        }
        let (read_at, size) = self.latest.get(&(instance, rel))?;
        (read_at >= unchanged_since).then_some(size)
    }

    fn keep(&self, instance: u64, rel: RelTag, lsn: Lsn, unchanged_since: Lsn, size: Size) {
        if lsn < unchanged_since {
            self.past.insert((instance, rel, lsn), size);
        } else {
            self.latest.insert((instance, rel), (lsn, size));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const REL: RelTag = RelTag { spcnode: 1663, dbnode: 5, relnode: 9, forknum: 0 };

    proptest! {
        /// Checks against a history of sizes that whatever is found while it grows is right.
        #[test]
        fn what_is_found_is_right(
            steps in prop::collection::vec((1..4u64, any::<bool>(), prop::collection::vec(0..100u64, 0..6)), 1..40),
        ) {
            let sizes = RelSizes::new();
            let mut history = BTreeMap::from([(10, Some(1))]);
            let (mut last, mut changed) = (10, 10);
            for (advance, changes, asked) in steps {
                last += advance;
                if changes {
                    changed = last;
                    history.insert(last, Some(last as u32));
                }
                for back in asked {
                    let lsn = last.saturating_sub(back).max(10);
                    let right = *history.range(..=lsn).next_back().unwrap().1;
                    if let Some(size) = sizes.find(1, REL, Lsn(lsn), Lsn(changed)) {
                        prop_assert_eq!(size, right, "at {}", lsn);
                    }
                    sizes.keep(1, REL, Lsn(lsn), Lsn(changed), right);
                    prop_assert_eq!(sizes.find(1, REL, Lsn(lsn), Lsn(changed)), Some(right));
                    prop_assert_eq!(sizes.find(2, REL, Lsn(lsn), Lsn(changed)), None);
                }
            }
        }
    }

    #[test]
    fn a_size_stays_known_until_it_changes() {
        let sizes = RelSizes::new();
        sizes.keep(1, REL, Lsn(100), Lsn(50), Some(7));
        assert_eq!(sizes.find(1, REL, Lsn(200), Lsn(50)), Some(Some(7)));
        assert_eq!(sizes.find(1, REL, Lsn(60), Lsn(50)), Some(Some(7)));
        assert_eq!(sizes.find(1, REL, Lsn(49), Lsn(50)), None);
        assert_eq!(sizes.find(1, REL, Lsn(200), Lsn(150)), None);
    }
}
