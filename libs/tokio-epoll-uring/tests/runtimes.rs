//! Runtimes and threads that end, and operations that outlive them.

mod common;

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{
    ALIGN, POISON, TempDir, Tracked, block_on, current_thread, eventually, multi_thread, open_files, pattern,
    poll_once, within,
};
use parking_lot::{Mutex, MutexGuard};
use tokio_epoll_uring::{DEFAULT_RING_ENTRIES, SystemHandle, set_default_ring_entries, thread_local_system};

/// Open files are counted for the whole process: one test at a time, and none before the first runtime, which opens
/// tokio's signal pipe permanently.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    let guard = ALONE.lock();
    drop(current_thread());
    guard
}

fn pipe() -> (Arc<File>, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    (Arc::new(File::from(std::os::fd::OwnedFd::from(reader))), File::from(std::os::fd::OwnedFd::from(writer)))
}

async fn write_and_read(file: Arc<File>, seed: u64) {
    let data = pattern(seed, 8192);
    let ((file, data), written) = thread_local_system().unwrap().write(file, seed * 8192, data).await;
    assert_eq!(written.unwrap(), 8192);
    let ((_, buf), read) = thread_local_system().unwrap().read(file, seed * 8192, Vec::with_capacity(8192)).await;
    assert_eq!(read.unwrap(), 8192);
    assert!(buf == data);
}

#[test]
fn three_hundred_runtimes_leave_no_open_files() {
    let _alone = alone();
    let dir = TempDir::new();
    let file = dir.file("file");
    let cycle = |i: u64| {
        let runtime = if i % 3 == 2 { current_thread() } else { multi_thread(2) };
        runtime.block_on(within(60, async {
            write_and_read(file.clone(), 0).await;
            let tasks: Vec<_> = (1..5).map(|seed| tokio::spawn(write_and_read(file.clone(), seed))).collect();
            for task in tasks {
                task.await.unwrap();
            }
        }));
    };
    (0..3).for_each(cycle);
    let before = open_files();
    let mut most = 0;
    for i in 0..300 {
        cycle(i);
        most = most.max(open_files());
    }
    assert!(most <= before + 1, "{before} open files before, up to {most} later");
}

#[test]
fn a_ring_belongs_to_one_thread_and_one_runtime() {
    let _alone = alone();
    let capacity = || thread_local_system().unwrap().load().capacity;
    set_default_ring_entries(20).unwrap();
    let (first, second) = (current_thread(), current_thread());
    assert_eq!(first.block_on(async { capacity() }), 32, "the next power of two");
    set_default_ring_entries(16).unwrap();
    assert_eq!(first.block_on(async { capacity() }), 32, "there already");
    assert_eq!(second.block_on(async { capacity() }), 16, "another runtime");
    let other_thread = std::thread::scope(|scope| scope.spawn(|| first.block_on(async { capacity() })).join());
    assert_eq!(other_thread.unwrap(), 16);
    set_default_ring_entries(DEFAULT_RING_ENTRIES).unwrap();
}

#[test]
fn a_runtime_dropped_with_operations_in_flight_frees_them() {
    let _alone = alone();
    let dir = TempDir::new();
    let before = open_files();
    for round in 0..30 {
        let alive = Arc::new(AtomicUsize::new(0));
        let file = dir.direct_file(&format!("file{round}"));
        let runtime = multi_thread(2);
        for task in 0..8u64 {
            let (file, alive) = (file.clone(), alive.clone());
            runtime.spawn(async move {
                for i in (task..).step_by(8) {
                    let system = thread_local_system().unwrap();
                    let data = Tracked::new(&pattern(i, ALIGN), &alive);
                    let ahead = system.write(file.clone(), (i % 64) * ALIGN as u64, data);
                    let data = Tracked::new(&[0; 16 * ALIGN], &alive);
                    system.read(file.clone(), 0, data).await.1.unwrap();
                    ahead.await.1.unwrap();
                }
            });
        }
        std::thread::sleep(Duration::from_millis(round % 10));
        if round % 2 == 0 {
            drop(runtime);
            assert_eq!(alive.load(Ordering::SeqCst), 0, "a dropped runtime has joined its workers");
        } else {
            runtime.shutdown_background();
            // Every task and every buffer has a clone.
            eventually("tasks and buffers freed", || Arc::strong_count(&alive) == 1);
            assert_eq!(alive.load(Ordering::SeqCst), 0);
        }
        let content = std::fs::read(dir.path(&format!("file{round}"))).unwrap();
        assert!(content.chunks(ALIGN).all(|page| page.iter().filter(|byte| **byte == POISON).count() < ALIGN / 2));
    }
    eventually("rings closed", || open_files() <= before);
}

#[test]
fn an_endless_read_does_not_keep_a_runtime_from_ending() {
    let _alone = alone();
    let (reader, writer) = pipe();
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = multi_thread(1);
    runtime.block_on(async {
        let mut read = SystemHandle::with_entries(2).unwrap().read(reader, 0, Tracked::new(&[0; 8], &alive));
        assert!(poll_once(&mut read).is_pending());
    });
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    let start = Instant::now();
    drop(runtime);
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    drop(writer);
}

#[test]
fn awaited_in_another_runtime_while_the_own_one_is_idle() {
    let _alone = alone();
    let (reader, mut writer) = pipe();
    let idle = current_thread();
    let op = {
        let _entered = idle.enter();
        thread_local_system().unwrap().read(reader, 0, Vec::with_capacity(8))
    };
    let other = multi_thread(1);
    let task = other.spawn(op);
    std::thread::sleep(Duration::from_millis(20));
    writer.write_all(b"abc").unwrap();
    let ((_, buf), read) = other.block_on(within(10, task)).unwrap();
    assert_eq!((read.unwrap(), &buf[..]), (3, &b"abc"[..]));
}

#[test]
fn awaited_after_the_own_runtime_was_shut_down() {
    let _alone = alone();
    let dir = TempDir::new();
    let file = dir.direct_file("file");
    let alive = Arc::new(AtomicUsize::new(0));
    for outside in [false, true] {
        let first = multi_thread(1);
        let make = async || {
            let system = SystemHandle::with_entries(2).unwrap();
            let write = |i| system.write(file.clone(), i * 4096, Tracked::new(&pattern(i, ALIGN), &alive));
            let ops: Vec<_> = (0..40).map(write).collect();
            (system, ops)
        };
        let (system, ops) = first.block_on(make());
        drop(first);
        let second = current_thread();
        for op in ops.into_iter().rev() {
            let (_, written) = if outside { block_on(op) } else { second.block_on(within(10, op)) };
            assert_eq!(written.unwrap(), ALIGN);
        }
        // The handle still works.
        let op = system.fdatasync(file.clone());
        let (_, result) = if outside { block_on(op) } else { second.block_on(within(10, op)) };
        result.unwrap();
    }
    let content = std::fs::read(dir.path("file")).unwrap();
    assert!(content.chunks(ALIGN).zip(0..).all(|(page, i)| page == pattern(i, ALIGN)));
    assert_eq!(alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_runtime_shut_down_under_a_waiting_thread() {
    let _alone = alone();
    let (reader, mut writer) = pipe();
    let runtime = multi_thread(1);
    let handle = runtime.handle().clone();
    let waiter = std::thread::spawn(move || {
        handle.block_on(async { thread_local_system().unwrap().read(reader, 0, Vec::with_capacity(8)).await })
    });
    std::thread::sleep(Duration::from_millis(20));
    runtime.shutdown_background();
    std::thread::sleep(Duration::from_millis(20));
    writer.write_all(b"abc").unwrap();
    let ((_, buf), read) = waiter.join().unwrap();
    assert_eq!((read.unwrap(), &buf[..]), (3, &b"abc"[..]));
}

#[test]
fn operations_survive_the_thread_that_submitted_them() {
    let _alone = alone();
    let dir = TempDir::new();
    let file = dir.direct_file("file");
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = multi_thread(2);
    for round in 0..50u64 {
        let (reader, mut writer) = pipe();
        let submit = || {
            let _entered = runtime.enter();
            let system = thread_local_system().unwrap();
            let write = |i| system.write(file.clone(), i * 4096, Tracked::new(&pattern(round + i, ALIGN), &alive));
            let writes: Vec<_> = (0..16).map(write).collect();
            let syncs: Vec<_> = (0..16).map(|_| system.fsync(file.clone())).collect();
            (writes, syncs, system.read(reader, 0, Vec::with_capacity(8)))
        };
        let (writes, syncs, read) = std::thread::scope(|scope| scope.spawn(submit).join().unwrap());
        writer.write_all(b"abc").unwrap();
        runtime.block_on(within(60, async {
            for write in writes {
                assert_eq!(write.await.1.unwrap(), ALIGN);
            }
            for sync in syncs {
                sync.await.1.unwrap();
            }
            assert_eq!(read.await.1.unwrap(), 3);
        }));
    }
    let content = std::fs::read(dir.path("file")).unwrap();
    assert!(content.chunks(ALIGN).zip(49..).all(|(page, i)| page == pattern(i, ALIGN)));
}

#[test]
fn a_handle_serves_many_threads() {
    let _alone = alone();
    let dir = TempDir::new();
    let file = dir.file("file");
    let runtime = multi_thread(2);
    let system = runtime.block_on(async { SystemHandle::with_entries(4).unwrap() });
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (system, file, runtime) = (system.clone(), file.clone(), &runtime);
            scope.spawn(move || {
                for i in 0..200 {
                    let offset = (thread * 200 + i) * 512;
                    let write = system.write(file.clone(), offset, pattern(offset, 512));
                    // Two of the threads run without tokio.
                    let (_, written) = if thread % 2 == 0 { block_on(write) } else { runtime.block_on(write) };
                    assert_eq!(written.unwrap(), 512);
                }
            });
        }
    });
    let content = std::fs::read(dir.path("file")).unwrap();
    assert_eq!(content.len(), 800 * 512);
    assert!(content.chunks(512).zip(0..).all(|(block, i)| block == pattern(i * 512, 512)));
}

#[test]
fn threads_of_the_blocking_pool_give_their_rings_back() {
    let _alone = alone();
    let dir = TempDir::new();
    let file = dir.file("file");
    let before = open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_keep_alive(Duration::from_millis(1))
        .enable_all()
        .build()
        .unwrap();
    let with_runtime = open_files();
    for _ in 0..10 {
        let tasks: Vec<_> = (0..8)
            .map(|seed| {
                let (file, handle) = (file.clone(), runtime.handle().clone());
                runtime.spawn_blocking(move || handle.block_on(write_and_read(file, seed)))
            })
            .collect();
        for task in tasks {
            runtime.block_on(within(60, task)).unwrap();
        }
    }
    eventually("rings closed while the runtime lives", || open_files() <= with_runtime);
    drop(runtime);
    assert!(open_files() <= before);
}
