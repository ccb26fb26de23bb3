//! The same values in two layer files, and the versions that a read must find.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

use engine::config::PageServerConf;
use engine::context::RequestContext;
use engine::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use engine::tenant::storage_layer::{DeltaLayer, DeltaLayerWriter, InMemoryLayer, KeyHistory, ReconstructState};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use pageserver_api::value::Value;
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::sync::gate::Gate;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::artifact::Validity;
use crate::values::Values;

/// Values of one batch.
const BATCH: usize = 4096;

/// The values that were put, and where.
pub struct Put<V> {
    values: V,
    lsns: Range<Lsn>,
    /// How many versions of each key a read at the end needs: the newest image and everything after it.
    needed: BTreeMap<Key, u64>,
}

/// A layer sealed in order of arrival, and one sorted by key.
pub struct Layers<V> {
    pub values: Put<V>,
    pub sealed: DeltaLayer,
    pub sorted: DeltaLayer,
}

/// One of the two.
pub struct Layer<'a, V> {
    pub values: &'a Put<V>,
    pub file: &'a DeltaLayer,
}

impl<V: Values> Put<V> {
    async fn put_all(values: V, layer: &InMemoryLayer, ctx: &RequestContext) -> anyhow::Result<Self> {
        let mut needed: BTreeMap<Key, u64> = BTreeMap::new();
        let mut batch = SerializedValueBatch::default();
        for i in 0..values.count() {
            let ((key, lsn), value) = (values.place(i), values.value(i));
            let count = needed.entry(key).or_default();
            *count = if value.will_init() { 1 } else { *count + 1 };
            batch.put_key(&key, lsn, &value)?;
            if batch.metadata().len() == BATCH {
                layer.put_batch(std::mem::take(&mut batch), ctx).await?;
            }
        }
        layer.put_batch(batch, ctx).await?;
        let lsns = layer.start_lsn()..values.place(values.count() - 1).1 + 1;
        Ok(Self { values, lsns, needed })
    }
}

impl<V: Values> Layers<V> {
    /// Writes both layers.
    pub async fn make(conf: &'static PageServerConf, values: V, ctx: &RequestContext) -> anyhow::Result<Self> {
        let tenant = TenantShardId::unsharded(TenantId::generate());
        let timeline = TimelineId::generate();
        tokio::fs::create_dir_all(conf.timeline_path(&tenant, &timeline)).await?;
        let (gate, cancel) = (Gate::default(), CancellationToken::new());
        let layer = InMemoryLayer::create(conf, timeline, tenant, Lsn(8), &gate, &cancel, ctx).await?;
        let put = Put::put_all(values, &layer, ctx).await?;
        layer.freeze(put.lsns.end).await;

        let keys = Key::MIN..Key::MAX;
        let mut writer = DeltaLayerWriter::create(conf, timeline, tenant, keys, put.lsns.clone(), ctx).await?;
        for (compact, lsn, _) in layer.versions() {
            writer.put_value(Key::from_compact(compact), lsn, &put.values.value(put.values.at(lsn))).await?;
        }
        let (sorted_desc, sorted_path) = writer.finish(ctx).await?;

        let flush = L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency: NonZeroUsize::MIN });
        let written = layer.write_to_disk(ctx, None, flush.inner(), &gate, cancel).await?;
        let (sealed_desc, sealed_path) = written.expect("the layer has values");
        println!("sealed {} MiB, sorted {} MiB", sealed_desc.file_size >> 20, sorted_desc.file_size >> 20);
        let sealed = DeltaLayer::open(&sealed_path, &sealed_desc, &Arc::default(), ctx).await?;
        let sorted = DeltaLayer::open(&sorted_path, &sorted_desc, &Arc::default(), ctx).await?;
        Ok(Self { values: put, sealed, sorted })
    }
}

impl<V: Values> Layer<'_, V> {
    pub async fn read(
        &self,
        keyspace: &KeySpace,
        state: &mut ReconstructState,
        ctx: &RequestContext,
    ) -> anyhow::Result<()> {
        Ok(self.file.get_values_reconstruct_data(keyspace, self.values.lsns.clone(), state, ctx).await?)
    }

    /// Every version that a read of `keyspace` has found must be what was put there, and none may be missing.
    pub fn compare(&self, keyspace: &KeySpace, state: ReconstructState, validity: &mut Validity) {
        let Put { values, needed, .. } = self.values;
        let wanted = keyspace.ranges().iter().flat_map(|range| needed.range(range.clone()));
        let (mut missing, histories) = (wanted.map(|(_, count)| count).sum::<u64>(), state.into_histories());
        for (key, KeyHistory { image, records, .. }) in histories {
            let records = records.into_iter().map(|(lsn, record)| (lsn, Value::WalRecord(record)));
            for (lsn, value) in records.chain(image.map(|(lsn, image)| (lsn, Value::Image(image)))) {
                let i = values.at(lsn);
                validity.compare(values.place(i) == (key, lsn) && values.value(i) == value);
                missing = missing.saturating_sub(1);
            }
        }
        (0..missing).for_each(|_| validity.missing());
    }
}
