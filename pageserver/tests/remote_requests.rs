//! Requests to the bucket: attempts, deadlines, budgets, and the results when the object store fails.

#[path = "../../engine/tests/remote_support/mod.rs"]
mod remote_support;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use errors::{ErrorKind, RemoteFailure, StorageError};
use remote_storage::{Creation, RemoteOptions, RemotePath, RemoteStorage, RequestClass};
use remote_support::{Fault, Op, TestStore, fast, pause_time, test_store, test_store_with};
use tokio::time::Instant;

fn path(name: &str) -> RemotePath {
    RemotePath::from(object_store::path::Path::from(format!("tenants/t/{name}")))
}

fn failure(error: &StorageError) -> RemoteFailure {
    match error {
        StorageError::Remote { failure, .. } => *failure,
        other => panic!("{other}"),
    }
}

async fn put(storage: &RemoteStorage, name: &str, bytes: &[u8]) {
    storage.put(RequestClass::Control, &path(name), Bytes::copy_from_slice(bytes)).await.unwrap();
}

/// Performs every operation once and checks the results.
async fn all_operations(store: &TestStore, file: &camino::Utf8Path) {
    let storage = &store.storage;
    let class = RequestClass::Control;
    put(storage, "a", b"0123456789").await;
    assert_eq!(storage.get(class, &path("a"), 100).await.unwrap(), "0123456789");
    assert_eq!(storage.get_range(class, &path("a"), 2..6).await.unwrap(), "2345");
    assert_eq!(storage.get_range(class, &path("a"), 9..10).await.unwrap(), "9");
    assert_eq!(storage.head(class, &path("a")).await.unwrap(), Some(10));
    assert_eq!(storage.head(class, &path("none")).await.unwrap(), None);
    let missing = storage.get(class, &path("none"), 9).await.unwrap_err();
    assert_eq!(failure(&missing), RemoteFailure::NotFound);
    let once = storage.create(class, &path("b/once"), "mine".into()).await.unwrap();
    assert_eq!(once, Creation::New, "even if a reply was lost");
    assert_eq!(storage.create(class, &path("b/once"), "his".into()).await.unwrap(), Creation::Existed);
    storage.put_file(RequestClass::Upload, &path("big"), file).await.unwrap();
    assert_eq!(storage.get(class, &path("big"), 1 << 30).await.unwrap(), std::fs::read(file).unwrap());
    let listed = storage.list(class, &path("")).await.unwrap();
    let listed: Vec<_> = listed.iter().map(|object| (object.path.to_string(), object.size)).collect();
    let expected =
        [("tenants/t/a", 10), ("tenants/t/b/once", 4), ("tenants/t/big", std::fs::metadata(file).unwrap().len())];
    let expected: Vec<_> = expected.map(|(name, size)| (name.to_owned(), size)).into_iter().collect();
    assert_eq!(listed, expected);
    assert_eq!(storage.list_dirs(class, &path("")).await.unwrap(), ["b"]);
    storage.delete(&[path("a"), path("none"), path("b/once"), path("big")]).await.unwrap();
    assert_eq!(storage.list(class, &path("")).await.unwrap(), []);
}

fn big_file() -> (camino_tempfile::Utf8TempDir, camino::Utf8PathBuf) {
    let dir = camino_tempfile::tempdir().unwrap();
    let file = dir.path().join("layer");
    let bytes: Vec<u8> = (0..(16 << 20) + 8192_u32).map(|n| (n / 7) as u8).collect();
    std::fs::write(&file, bytes).unwrap();
    (dir, file)
}

/// The smallest parts that S3 allows.
fn small_parts() -> RemoteOptions {
    RemoteOptions { part_size: 5 << 20, attempt_timeout: Duration::from_secs(2), ..fast() }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_operation_survives_every_fault() {
    let (_dir, file) = big_file();
    let (mut combinations, mut injected) = (0, 0);
    for op in Op::ALL {
        for fault in Fault::ALL.into_iter().filter(|fault| fault.applies(op) && *fault != Fault::StaleList) {
            let store = test_store_with(small_parts()).await;
            // The first call and then every seventh fail, and each succeeds when it is retried. A burst is five
            // failures long.
            let every = if fault == Fault::Burst { 23 } else { 7 };
            store.faults.set_plan(move |called, number, _| (called == op && number % every == 0).then_some(fault));
            let work = all_operations(&store, &file);
            tokio::time::timeout(Duration::from_secs(60), work).await.unwrap_or_else(|_| panic!("{op:?} {fault:?}"));
            let count: u64 = store.faults.injected().values().sum();
            assert!(count > 0, "{op:?} {fault:?} never happened");
            combinations += 1;
            injected += count;
        }
    }
    println!("{combinations} combinations of operation and fault, {injected} faults");
}

#[tokio::test]
async fn a_request_that_keeps_failing_fails_at_its_deadline_and_not_before() {
    let is_paused = pause_time();
    let options = RemoteOptions { retry_deadline: Duration::from_millis(400), ..fast() };
    let store = test_store_with(options).await;
    store.faults.set_gone(true);
    let started = Instant::now();
    let error = store.storage.head(RequestClass::Control, &path("a")).await.unwrap_err();
    let took = started.elapsed();
    assert_eq!((failure(&error), error.kind()), (RemoteFailure::Unavailable, ErrorKind::Retry));
    assert!(error.to_string().contains("the store is gone"), "{error}");
    let limit = Duration::from_millis(if is_paused { 450 } else { 3000 });
    assert!(took >= Duration::from_millis(350) && took < limit, "{took:?}");
    let attempts = store.faults.calls(Op::Head);
    assert!((5..=50).contains(&attempts), "{attempts} attempts");
    store.faults.set_gone(false);
    assert_eq!(store.storage.head(RequestClass::Control, &path("a")).await.unwrap(), None);
}

#[tokio::test]
async fn there_is_a_most_number_of_attempts() {
    let store = test_store_with(RemoteOptions { max_attempts: 4, ..fast() }).await;
    store.faults.set_gone(true);
    store.storage.head(RequestClass::Control, &path("a")).await.unwrap_err();
    assert_eq!(store.faults.calls(Op::Head), 4);
}

#[tokio::test]
async fn what_is_absent_is_not_asked_for_again() {
    let store = test_store().await;
    store.storage.get(RequestClass::Read, &path("a"), 9).await.unwrap_err();
    assert_eq!(store.storage.head(RequestClass::Read, &path("a")).await.unwrap(), None);
    assert_eq!(store.faults.total_calls(), 2);
}

#[tokio::test]
async fn refused_credentials_are_tried_slowly_until_they_are_good() {
    pause_time();
    let store = test_store().await;
    put(&store.storage, "a", b"x").await;
    store.faults.set_denied(true);
    let storage = store.storage.clone();
    let reading = tokio::spawn(async move { storage.get(RequestClass::Read, &path("a"), 9).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    let tried = store.faults.calls(Op::Get);
    assert!(tried <= 200 / 5 + 1, "{tried} attempts in 200 ms, with pauses of at least 5 ms");
    store.faults.set_denied(false);
    assert_eq!(reading.await.unwrap().unwrap(), "x");
    let options = RemoteOptions { retry_deadline: Duration::from_millis(100), ..fast() };
    let (storage, faults) = store.another(options);
    faults.set_denied(true);
    let error = storage.get(RequestClass::Read, &path("a"), 9).await.unwrap_err();
    assert_eq!((failure(&error), error.kind()), (RemoteFailure::Denied, ErrorKind::Retry));
}

#[tokio::test]
async fn wrong_answers_are_asked_for_again_and_then_refused() {
    let store = test_store().await;
    put(&store.storage, "a", b"0123456789").await;
    for fault in [Fault::WrongRange, Fault::TruncatedBody] {
        let before = store.faults.calls(Op::GetRange);
        store.faults.set_plan(move |_, _, _| Some(fault));
        let error = store.storage.get_range(RequestClass::Read, &path("a"), 2..8).await.unwrap_err();
        assert_eq!((failure(&error), error.kind()), (RemoteFailure::Malformed, ErrorKind::Corrupt), "{error}");
        assert_eq!(store.faults.calls(Op::GetRange) - before, 3);
    }
    store.faults.clear_plan();
    let error = store.storage.get_range(RequestClass::Read, &path("a"), 2..20).await.unwrap_err();
    assert_eq!(failure(&error), RemoteFailure::Malformed, "beyond its end");
    let error = store.storage.get(RequestClass::Read, &path("a"), 9).await.unwrap_err();
    assert_eq!(failure(&error), RemoteFailure::Malformed, "longer than expected");
}

#[tokio::test]
async fn a_stuck_body_is_given_up_and_asked_for_again() {
    pause_time();
    let store = test_store().await;
    put(&store.storage, "a", b"0123456789").await;
    store.faults.set_plan(|_, number, _| (number == 0).then_some(Fault::SlowBody));
    let started = Instant::now();
    assert_eq!(store.storage.get(RequestClass::Read, &path("a"), 99).await.unwrap(), "0123456789");
    assert!(started.elapsed() >= Duration::from_millis(300), "the limit of an attempt");
    assert_eq!(store.faults.calls(Op::Get), 2);
    // However large the object might have been.
    store.faults.set_plan(|_, number, _| (number == 2).then_some(Fault::Timeout));
    let started = Instant::now();
    assert_eq!(store.storage.get(RequestClass::Read, &path("a"), 1 << 30).await.unwrap(), "0123456789");
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}

#[tokio::test]
async fn reads_do_not_wait_behind_uploads_and_no_class_exceeds_its_budget() {
    pause_time();
    let options =
        RemoteOptions { upload_concurrency: 3.try_into().unwrap(), attempt_timeout: Duration::from_secs(5), ..fast() };
    let store = test_store_with(options).await;
    put(&store.storage, "a", b"x").await;
    // Uploads hang, and there are more of them than may run at once.
    store.faults.set_plan(|op, _, _| (op == Op::Put).then_some(Fault::Timeout));
    let uploads: Vec<_> = (0..20)
        .map(|n| {
            let storage = store.storage.clone();
            tokio::spawn(async move { storage.put(RequestClass::Upload, &path(&format!("u{n}")), "y".into()).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(store.faults.max_in_flight(), 3, "uploads");
    let (a, u) = (path("a"), path("u"));
    let read = store.storage.get(RequestClass::Read, &a, 9);
    assert_eq!(tokio::time::timeout(Duration::from_secs(2), read).await.unwrap().unwrap(), "x");
    // An aborted request gives its turn back.
    uploads.iter().for_each(tokio::task::JoinHandle::abort);
    for upload in uploads {
        assert!(upload.await.unwrap_err().is_cancelled());
    }
    store.faults.clear_plan();
    let upload = store.storage.put(RequestClass::Upload, &u, "y".into());
    tokio::time::timeout(Duration::from_secs(2), upload).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_that_create_one_object_one_succeeds_whatever_is_lost() {
    let (mut rounds, mut lost) = (0, 0);
    for fault in
        [None, Some(Fault::ErrorBefore), Some(Fault::ErrorAfter), Some(Fault::Precondition), Some(Fault::Burst)]
    {
        for round in 0..10 {
            let store = test_store().await;
            store.faults.set_plan(move |op, n, _| fault.filter(|_| op == Op::Create && (n + round).is_multiple_of(3)));
            let storage = Arc::new(store.storage.clone());
            let tasks: Vec<_> = (0..6)
                .map(|n| {
                    let storage = Arc::clone(&storage);
                    let bytes = Bytes::from(format!("owner {n}"));
                    tokio::spawn(async move { storage.create(RequestClass::Control, &path("g"), bytes).await.unwrap() })
                })
                .collect();
            let mut winners = Vec::new();
            for (n, task) in tasks.into_iter().enumerate() {
                if task.await.unwrap() == Creation::New {
                    winners.push(n);
                }
            }
            assert_eq!(winners.len(), 1, "{fault:?}: {winners:?}");
            let kept = store.storage.get(RequestClass::Control, &path("g"), 99).await.unwrap();
            assert_eq!(kept, format!("owner {}", winners[0]));
            rounds += 1;
            lost += store.faults.injected().values().sum::<u64>();
        }
    }
    println!("{rounds} races of 6 for one object, {lost} faults");
}

#[tokio::test]
async fn a_directory_that_is_away_is_not_an_empty_one() {
    let dir = camino_tempfile::tempdir().unwrap();
    let (here, away) = (dir.path().join("objects"), dir.path().join("away"));
    let (settings, _) = {
        std::fs::write(dir.path().join("pageserver.toml"), "remote_storage_retry_deadline = \"300ms\"\n").unwrap();
        pageserver::settings::Settings::load(dir.path(), &Default::default()).unwrap()
    };
    let storage = RemoteStorage::open(&settings.store(dir.path()).unwrap()).await.unwrap().unwrap();
    storage.wait_until_usable(Duration::from_secs(5)).await.unwrap();
    storage.wait_until_usable(Duration::from_secs(5)).await.unwrap();
    put(&storage, "a", b"x").await;
    std::fs::rename(&here, &away).unwrap();
    let class = RequestClass::Control;
    for error in [
        storage.get(class, &path("a"), 9).await.unwrap_err(),
        storage.head(class, &path("a")).await.unwrap_err(),
        storage.list(class, &path("")).await.unwrap_err(),
        storage.list_dirs(class, &path("")).await.unwrap_err(),
        storage.put(class, &path("b"), "y".into()).await.unwrap_err(),
        storage.delete(&[path("a")]).await.unwrap_err(),
    ] {
        assert_eq!(failure(&error), RemoteFailure::Unavailable, "{error}");
        assert!(error.to_string().contains("is away"), "{error}");
    }
    let error = storage.wait_until_usable(Duration::from_millis(400)).await.unwrap_err().to_string();
    assert!(error.contains("out of reach") && error.contains("is away"), "{error}");
    assert!(!here.exists());
    std::fs::rename(&away, &here).unwrap();
    assert_eq!(storage.get(class, &path("a"), 9).await.unwrap(), "x");
}
