//! There are never more L0 layers than ingest waits at, whatever freezes them.

use std::time::Duration;

use crate::sim::block_on_paused;
use crate::sim::disk::SimDisk;
use crate::sim::history::root;
use crate::stack::{config, context, import, new_timeline};
use anyhow::ensure;
use engine::config::{CompactionPolicy, PageServerConf};
use engine::tenant::timeline::Timeline;
use pageserver_api::key::{Key, slru_block_key};
use pageserver_api::reltag::SlruKind;
use pageserver_api::value::Value;
use wal_decoder::serialized_batch::SerializedValueBatch;

const SLOW: usize = 3;
const WAIT: usize = 5;
/// WAL in one layer at most. The values in it take next to nothing.
const DISTANCE: u64 = 50_000;
const PUTS: u64 = 200;

async fn put(timeline: &Timeline, key: &Key, wal: u64) -> anyhow::Result<()> {
    let (mut batch, last) = (SerializedValueBatch::default(), timeline.last_record_lsn());
    batch.put_key(key, last + wal, &Value::Image(vec![7; 100].into()))?;
    timeline.put_batch(batch, &context()).await?;
    timeline.finish_write(last + wal, last);
    Ok(())
}

/// Every value but a few has its layer frozen for the WAL that passed; now and then somebody has the open one written.
#[test]
fn layers_frozen_for_their_wal_wait_for_sorts_like_full_ones() -> anyhow::Result<()> {
    let root = root("l0-limit");
    let disk = SimDisk::new(&root);
    let _mounted = disk.mount();
    let common = config(&root, DISTANCE);
    let compaction = CompactionPolicy { l0_slow: SLOW, l0_wait: WAIT, ..common.compaction.clone() };
    let conf = PageServerConf { compaction, ..common.clone() };
    block_on_paused(async {
        let (timeline, _) = import(Box::leak(Box::new(conf)), new_timeline()).await?;
        // A sort takes longer than it takes to fill layers.
        disk.delay_calls(1, Duration::from_millis(20));
        let mut most = 0;
        for number in 0..PUTS {
            timeline.tend().await?;
            let wal = if number % 7 == 0 { 8 } else { DISTANCE + 8 };
            put(&timeline, &slru_block_key(SlruKind::Clog, 0, (number % 5) as u32), wal).await?;
            if number % 3 == 0 {
                timeline.flush(&context()).await?;
            }
            let layers = timeline.info().l0_layers;
            ensure!(layers <= WAIT, "{layers} L0 layers after {number} values, where ingest waits at {WAIT}");
            most = most.max(layers);
        }
        ensure!(most == WAIT, "ingest never came near the limit: {most}");
        timeline.shutdown().await;
        Ok(())
    })
}
