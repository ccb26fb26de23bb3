//! Images at the cutoff where a layer that reaches over the cutoff also has a page that is younger: it has no image
//! there, and that must not keep the others from having one.

use std::collections::BTreeSet;

use crate::stack::{Model, config, context, import, keys, new_timeline};
use bytes::Bytes;
use camino_tempfile::tempdir;
use engine::tenant::timeline::Timeline;
use pageserver_api::key::Key;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// More than what a test writes: layers end where it says. Odd: images come late, but for those at the cutoff.
const CHECKPOINT_DISTANCE: u64 = (1 << 30) + 1;

/// Writes an image of each of `pages` (numbers of keys), in this order, and makes them a layer.
async fn layer_of(timeline: &Timeline, model: &mut Model, pages: &[usize]) {
    for page in pages {
        let (last, key) = (timeline.last_record_lsn(), keys()[*page]);
        let lsn = last + 8;
        let value = Value::Image(Bytes::from(vec![lsn.0 as u8 ^ (lsn.0 >> 8) as u8; 8192]));
        let mut batch = SerializedValueBatch::default();
        batch.put_key(&key, lsn, &value).unwrap();
        model.put(key, lsn, value);
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, last);
    }
    timeline.flush(&context()).await.unwrap();
}

/// Compares every key as of every LSN that may be read.
async fn check(timeline: &Timeline, model: &Model) -> usize {
    let lsns: BTreeSet<Lsn> = model.lsns().into_iter().filter(|lsn| timeline.check_readable(*lsn).is_ok()).collect();
    for lsn in &lsns {
        let there: Vec<Key> = keys().into_iter().filter(|key| model.value(key, *lsn).is_some()).collect();
        for key in there {
            let found = timeline.get(key, *lsn, &context()).await.unwrap();
            assert_eq!(Some(found), model.value(&key, *lsn), "{key} as of {lsn}");
        }
    }
    lsns.len()
}

#[tokio::test]
async fn a_page_that_is_younger_than_the_cutoff_keeps_no_image_from_being_made_there() {
    let dir = tempdir().unwrap();
    let (timeline, mut model) = import(config(dir.path(), CHECKPOINT_DISTANCE), new_timeline()).await.unwrap();
    // Page 1 is not in the import. What is kept are the last 64 bytes, eight of these versions.
    let old = [0; 12];
    for _ in 0..2 {
        layer_of(&timeline, &mut model, &old).await;
    }
    timeline.compact().await.unwrap();
    layer_of(&timeline, &mut model, &[2, 0, 2, 0, 2, 0]).await;
    layer_of(&timeline, &mut model, &[0, 2, 4, 1]).await;
    timeline.compact().await.unwrap();
    let page = keys()[1];
    Timeline::collect_garbage(std::slice::from_ref(&timeline), false).await.unwrap();
    let cutoff = timeline.min_readable_lsn();
    assert!(model.value(&page, cutoff).is_none() && model.value(&page, Lsn::MAX).is_some(), "cutoff {cutoff}");

    let done = timeline.compact().await.unwrap();
    assert!(done.fold.jobs > 0, "no images were made at the cutoff: {done:?}");
    assert_eq!(timeline.info().compaction_error, None);
    assert!(check(&timeline, &model).await >= 8);
    timeline.shutdown().await;
}
