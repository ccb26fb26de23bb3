//! What a visit of a layer will read, per its index, so that the data of several layers can be fetched together.

use std::ops::Range;

use pageserver_api::key::Key;
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use utils::lsn::Lsn;

use super::block_source::Extent;
use super::visit::{KeyVersions, cached_base, collect_versions};
use super::{DeltaLayer, ImageLayer, ReadCosts, ReconstructState};
use errors::StorageError;

/// Maximum bytes of one layer that are fetched together with those of other layers.
const PREFETCH_BYTES_MAX: u64 = 4 << 20;

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct ReadPlan {
    extents: Vec<Extent>,
    complete: KeySpaceBuilder,
    costs: ReadCosts,
}

impl ReadPlan {
    /// Keys that need nothing older.
    pub(crate) fn complete(&self) -> KeySpace {
        self.complete.clone().build()
    }

    /// What making the plan has cost. The visit will ask the same filters again: they are not counted here.
    pub(crate) fn costs(&self) -> ReadCosts {
        ReadCosts { filters: 0, ..self.costs }
    }

    /// What to read, in order of position; nothing if it is too much to fetch ahead.
    fn extents(mut self) -> Vec<Extent> {
        if self.extents.iter().map(|extent| u64::from(extent.len)).sum::<u64>() > PREFETCH_BYTES_MAX {
            return Vec::new();
        }
        self.extents.sort_unstable();
        self.extents
    }
}

impl DeltaLayer {
    /// What a visit would read.
    pub(crate) async fn plan_read(
        &self,
        keyspace: &KeySpace,
        lsn_range: &Range<Lsn>,
        state: &ReconstructState,
    ) -> Result<ReadPlan, StorageError> {
        let mut wanted: Vec<KeyVersions> = Vec::new();
        let mut plan = ReadPlan { costs: self.file().take_opening(), ..ReadPlan::default() };
        for range in keyspace.ranges() {
            let entries = self.file().entries(range, &mut plan.costs).await?;
            collect_versions(entries.into_iter(), lsn_range, state, &mut wanted);
        }
        for mut key in wanted {
            let is_complete =
                cached_base(&mut key, state).is_some() || key.versions.last().is_some_and(|last| last.flag);
            if is_complete {
                plan.complete.add_key(key.key);
            }
            let places = key.versions.iter().map(|entry| Extent { position: entry.position, len: entry.len });
            plan.extents.extend(places);
        }
        Ok(plan)
    }

    /// Caches what `plan` lists, if the layer is in the bucket.
    pub(crate) async fn prefetch(&self, plan: ReadPlan) -> Result<ReadCosts, StorageError> {
        self.file().source().prefetch(&plan.extents()).await
    }
}

impl ImageLayer {
    /// What a visit would read.
    pub(crate) async fn plan_read(
        &self,
        keyspace: &KeySpace,
        lsn_range: &Range<Lsn>,
        state: &ReconstructState,
    ) -> Result<ReadPlan, StorageError> {
        let mut plan = ReadPlan::default();
        let lsn = self.lsn();
        if !lsn_range.contains(&lsn) {
            return Ok(plan);
        }
        plan.costs += self.file().take_opening();
        for range in keyspace.ranges() {
            for entry in self.file().entries(range, &mut plan.costs).await? {
                let key = Key::from_compact(entry.key);
                plan.complete.add_key(key);
                if !state.is_complete(&key) && state.cached(&key, lsn).is_none() {
                    plan.extents.push(Extent { position: entry.position, len: entry.len });
                }
            }
        }
        Ok(plan)
    }

    /// Caches what `plan` lists, if the layer is in the bucket.
    pub(crate) async fn prefetch(&self, plan: ReadPlan) -> Result<ReadCosts, StorageError> {
        self.file().source().prefetch(&plan.extents()).await
    }
}
