//! A timeline that is far behind the server that it follows makes few images until it has caught up.

use bytes::Bytes;
use camino_tempfile::tempdir;
use engine::config::{CompactionPolicy, PageServerConf};
use engine::tenant::timeline::Timeline;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::stack::{Model, config, context, import, keys, new_timeline};

/// More than what the test writes: layers end where it says.
const CHECKPOINT_DISTANCE: u64 = 1 << 30;
/// Far more than what counts as far behind.
const FAR: u64 = 1 << 40;
const ROUNDS_MAX: u32 = 200;

/// Writes two layers of pages that are as far behind as they can be, if `far`, and does what is due. Returns how many
/// image jobs that were.
async fn write(timeline: &Timeline, model: &mut Model, far: bool) -> u64 {
    for page in [0, 2, 4, 6, 0, 2, 4, 6] {
        let (last, key) = (timeline.last_record_lsn(), keys()[page]);
        let lsn = last + 8;
        let value = Value::Image(Bytes::from(vec![lsn.0 as u8; 8192]));
        let mut batch = SerializedValueBatch::default();
        batch.put_key(&key, lsn, &value).unwrap();
        model.put(key, lsn, value);
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, last);
        timeline.note_source_end(if far { lsn + FAR } else { lsn });
        if page == 6 {
            timeline.flush(&context()).await.unwrap();
        }
    }
    timeline.compact().await.unwrap().image.jobs
}

/// After how many rounds there is an image.
async fn rounds_until_images(timeline: &Timeline, model: &mut Model, far: bool) -> u32 {
    for round in 1..=ROUNDS_MAX {
        if write(timeline, model, far).await > 0 {
            return round;
        }
    }
    panic!("no images after {ROUNDS_MAX} rounds");
}

#[tokio::test]
async fn images_wait_until_a_timeline_has_caught_up_but_not_for_ever() {
    let dir = tempdir().unwrap();
    let common = config(dir.path(), CHECKPOINT_DISTANCE);
    // Some rounds change as much as makes them due.
    let compaction = CompactionPolicy { image_percent: 1000, ..common.compaction.clone() };
    let conf = Box::leak(Box::new(PageServerConf { compaction, ..common.clone() }));
    let (timeline, mut model) = import(conf, new_timeline()).await.unwrap();
    // The first ones have more to begin with.
    rounds_until_images(&timeline, &mut model, false).await;
    let near = rounds_until_images(&timeline, &mut model, false).await;
    let far = rounds_until_images(&timeline, &mut model, true).await;
    assert!(near > 1 && far > 2 * near, "images after {far} rounds, and after {near} of one that is not behind");
    // With what would do for one that is not behind, or one round more.
    for _ in 0..=near {
        assert_eq!(write(&timeline, &mut model, true).await, 0);
    }
    timeline.note_source_end(Lsn::INVALID);
    assert!(timeline.compact().await.unwrap().image.jobs > 0, "nothing has changed but that it has caught up");
    let last = timeline.last_record_lsn();
    for key in keys() {
        let found = timeline.get(key, last, &context()).await.ok();
        assert_eq!(found, model.value(&key, last), "{key}");
    }
    timeline.shutdown().await;
}
