//! There are never more L0 layers than ingest waits at, whatever freezes them.

use std::time::Duration;

use anyhow::ensure;
use camino::Utf8PathBuf;
use engine::config::{CompactionPolicy, PageServerConf};
use engine::tenant::timeline::Timeline;
use pageserver_api::key::slru_block_key;
use pageserver_api::reltag::SlruKind;
use pageserver_api::value::Value;
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::disk::SimDisk;
use crate::stack::{config, context, import, new_timeline};

const SLOW: usize = 4;
const WAIT: usize = 5;
/// WAL in one layer at most. The pages in it would not fill it.
const DISTANCE: u64 = 100_000;
const PAGES: u32 = 4;
const PUTS: u64 = 400;

async fn put(timeline: &Timeline, first: u32, wal: u64) -> anyhow::Result<()> {
    let (mut batch, last) = (SerializedValueBatch::default(), timeline.last_record_lsn());
    for page in first..first + PAGES {
        batch.put_key(&slru_block_key(SlruKind::Clog, 0, page), last + wal, &Value::Image(vec![7; 8192].into()))?;
    }
    timeline.put_batch(batch, &context()).await?;
    timeline.finish_write(last + wal, last);
    Ok(())
}

/// All but a few values have their layer frozen for the WAL that passed; now and then somebody has the open one
/// written. A sort writes more files than a flush, and takes longer.
pub fn freeze_for_wal(root: &Utf8PathBuf) -> anyhow::Result<()> {
    let disk = SimDisk::new(root);
    let _mounted = disk.mount();
    let common = config(root, DISTANCE);
    let compaction = CompactionPolicy { l0_layers: SLOW, l0_slow: SLOW, l0_wait: WAIT, ..common.compaction.clone() };
    let conf = PageServerConf { compaction, ..common.clone() };
    super::block_on_paused(async {
        let (timeline, _) = import(Box::leak(Box::new(conf)), new_timeline()).await?;
        disk.delay_calls(1, Duration::from_millis(20));
        let mut most = 0;
        for number in 0..PUTS {
            let wal = if number % 7 == 0 { 8 } else { DISTANCE + 8 };
            put(&timeline, number as u32 % 5, wal).await?;
            if number % 2 == 0 {
                timeline.flush(&context()).await?;
            }
            let layers = timeline.info().l0_layers;
            if number % 2 == 0 {
                // Starts sorts. It would freeze a layer that is due.
                timeline.tend().await?;
            }
            ensure!(layers <= WAIT, "{layers} L0 layers after {number} values, where ingest waits at {WAIT}");
            most = most.max(layers);
        }
        ensure!(most == WAIT, "ingest never came near the limit: {most}");
        timeline.shutdown().await;
        Ok(())
    })
}
