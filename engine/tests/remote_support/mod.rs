//! Shared parts of the bucket tests: an object store that fails on demand, and a fresh one for each test.
// Each test binary uses only some of it.
#![allow(dead_code, unused_imports, reason = "shared by several test binaries")]

use std::sync::Arc;
use std::time::Duration;

use camino_tempfile::Utf8TempDir;
use object_store::ObjectStore;
use object_store::local::LocalFileSystem;
use remote_storage::{RemoteOptions, RemoteStorage, RemoteUrl, StoreSettings};
pub use simulated::bucket::{Fault, FaultyStore, Op};

/// A bucket for one test.
pub struct TestStore {
    /// As the engine sees it.
    pub storage: RemoteStorage,
    /// Injects the faults.
    pub faults: Arc<FaultyStore>,
    /// What is actually stored, without faults.
    pub truth: Arc<dyn ObjectStore>,
    dir: Option<Utf8TempDir>,
}

impl TestStore {
    /// Another server's view of the same bucket, with separate faults.
    pub fn another(&self, options: RemoteOptions) -> (RemoteStorage, Arc<FaultyStore>) {
        view(&self.truth, options)
    }

    /// The directory that holds the objects, if the bucket is one.
    pub fn dir(&self) -> Option<&camino::Utf8Path> {
        self.dir.as_ref().map(Utf8TempDir::path)
    }
}

/// Retries with short pauses.
pub fn fast() -> RemoteOptions {
    RemoteOptions {
        attempt_timeout: Duration::from_millis(300),
        retry_deadline: Duration::from_secs(10),
        first_pause: Duration::from_millis(1),
        ..RemoteOptions::default()
    }
}

/// A fresh bucket: a directory, or with `TEST_REMOTE_STORAGE=s3://BUCKET/PREFIX` in the environment a fresh prefix
/// there. `TEST_REMOTE_STORAGE_ENDPOINT` sets its endpoint; credentials are in the usual variables.
pub async fn test_store() -> TestStore {
    test_store_with(fast()).await
}

/// See [`test_store`].
pub async fn test_store_with(options: RemoteOptions) -> TestStore {
    let (truth, dir) = match std::env::var("TEST_REMOTE_STORAGE") {
        Ok(url) => (bucket(&url).await, None),
        Err(_) => {
            let dir = camino_tempfile::tempdir().unwrap();
            let files = LocalFileSystem::new_with_prefix(dir.path()).unwrap();
            (Arc::new(files) as Arc<dyn ObjectStore>, Some(dir))
        }
    };
    let (storage, faults) = view(&truth, options);
    TestStore { storage, faults, truth, dir }
}

fn view(truth: &Arc<dyn ObjectStore>, options: RemoteOptions) -> (RemoteStorage, Arc<FaultyStore>) {
    let faults = FaultyStore::new(Arc::clone(truth));
    (RemoteStorage::with_options(faults.clone(), "test://bucket", options), faults)
}

async fn bucket(url: &str) -> Arc<dyn ObjectStore> {
    let unique = format!("{}/{:016x}", url.trim_end_matches('/'), env::random::u64());
    let settings = StoreSettings {
        url: RemoteUrl::parse(&unique).unwrap(),
        name: unique,
        endpoint: std::env::var("TEST_REMOTE_STORAGE_ENDPOINT").ok(),
        region: Some("us-east-1".to_owned()),
        path_style: true,
        allow_http: true,
        sign_payload: true,
        credentials_file: None,
        scratch: None,
        options: RemoteOptions::default(),
    };
    settings.open().await.unwrap().expect("a bucket")
}

/// Pauses this runtime's clock, which then advances only while everything waits, unless the tests use a real object
/// store. Returns whether it did.
pub fn pause_time() -> bool {
    let is_local = std::env::var_os("TEST_REMOTE_STORAGE").is_none();
    if is_local {
        tokio::time::pause();
    }
    is_local
}
