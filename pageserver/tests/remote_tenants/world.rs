//! Shared fixtures of these tests.

use camino::Utf8Path;
use engine::config::PageServerConf;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use remote_storage::{RemoteOptions, RemoteStorage};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::remote_support::fast;
use crate::stack::{Model, context, put_record};
use std::time::Duration;

pub const UPLOAD: Duration = Duration::from_secs(30);

/// Only one attempt, so that each call counts.
pub fn once() -> RemoteOptions {
    RemoteOptions { max_attempts: 1, ..fast() }
}

pub fn config(workdir: &Utf8Path, bucket: &RemoteStorage) -> &'static PageServerConf {
    let conf = PageServerConf {
        checkpoint_distance: 1 << 20,
        remote_storage: Some(bucket.clone()),
        remote_storage_start_timeout: Duration::from_secs(1),
        ..PageServerConf::dummy_conf(workdir.to_owned())
    };
    Box::leak(Box::new(conf))
}

pub async fn load(workdir: &Utf8Path, bucket: &RemoteStorage) -> TenantManager {
    let manager = TenantManager::load_idle(config(workdir, bucket)).await.unwrap();
    assert_eq!(manager.broken(), []);
    manager
}

/// Puts records, and applies them to the model.
pub async fn put(timeline: &Timeline, model: &mut Model, records: u32) {
    for record in 0..records {
        let (mut batch, lsn) = (SerializedValueBatch::default(), timeline.last_record_lsn() + 8);
        put_record(model, &mut batch, lsn, &[(record as usize * 5, record * 31 + lsn.0 as u32)]);
        timeline.put_batch(batch, &context()).await.unwrap();
        timeline.finish_write(lsn, lsn - 8);
    }
}

pub async fn check(timeline: &Timeline, model: &Model, lsn: Lsn) {
    let found = timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), lsn, &context()).await.unwrap();
    let found: Vec<_> = found.into_iter().map(|(key, value)| (key, value.unwrap())).collect();
    let expected: Vec<_> = model.values(&(Key::MIN..Key::MAX), lsn).into_iter().collect();
    assert!(found == expected, "as of {lsn}: {} keys found, {} expected", found.len(), expected.len());
}

/// The process dies: nothing is flushed, uploaded or waited for.
pub async fn kill(manager: TenantManager) {
    for timeline in manager.all_timelines() {
        timeline.shutdown().await;
    }
    manager.shutdown().await;
}
