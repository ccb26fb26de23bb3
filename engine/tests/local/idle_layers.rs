//! An idle server now and then writes a few counters: these must not create layers, whereas a commit must, and soon.

use std::time::{Duration, Instant};

use crate::stack::{context, import, new_timeline};
use bytes::Bytes;
use camino_tempfile::tempdir;
use engine::config::PageServerConf;
use engine::tenant::timeline::Timeline;
use pageserver_api::key::{CHECKPOINT_KEY, Key, slru_block_key};
use pageserver_api::reltag::SlruKind;
use pageserver_api::value::Value;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// The maximum time before a layer is frozen, and an allowance for slow machines.
const TIMEOUT: Duration = Duration::from_millis(200);
const SLOW: Duration = Duration::from_secs(20);

async fn put(timeline: &Timeline, key: Key) {
    let (mut batch, last) = (SerializedValueBatch::default(), timeline.last_record_lsn());
    batch.put_key(&key, last + 64, &Value::Image(Bytes::from_static(b"counters"))).unwrap();
    timeline.put_batch(batch, &context()).await.unwrap();
    timeline.finish_write(last + 64, last);
    timeline.tend().await.unwrap();
}

#[tokio::test]
async fn a_server_that_does_nothing_adds_no_layers() {
    let dir = tempdir().unwrap();
    let conf = PageServerConf { checkpoint_timeout: TIMEOUT, ..PageServerConf::dummy_conf(dir.path().to_owned()) };
    let (timeline, _) = import(Box::leak(Box::new(conf)), new_timeline()).await.unwrap();
    let imported = timeline.layer_files().len();
    for _ in 0..12 {
        put(&timeline, CHECKPOINT_KEY).await;
        tokio::time::sleep(TIMEOUT / 2).await;
    }
    assert_eq!(timeline.layer_files().len(), imported, "nobody waits for these");
    // A commit still becomes durable promptly.
    put(&timeline, slru_block_key(SlruKind::Clog, 0, 0)).await;
    let (committed, started) = (timeline.last_record_lsn(), Instant::now());
    while timeline.disk_consistent_lsn() < committed {
        assert!(started.elapsed() < SLOW, "the commit waits");
        tokio::time::sleep(Duration::from_millis(10)).await;
        timeline.tend().await.unwrap();
    }
    assert_eq!(timeline.layer_files().len(), imported + 1);
    // An explicit flush makes everything durable at once.
    put(&timeline, CHECKPOINT_KEY).await;
    timeline.flush(&context()).await.unwrap();
    assert_eq!(timeline.disk_consistent_lsn(), timeline.last_record_lsn());
    timeline.shutdown().await;
}
