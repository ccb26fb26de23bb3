//! Full rings, futures that are held without being polled, and futures that are dropped.

mod common;

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use common::{ALIGN, POISON, TempDir, Tracked, current_thread, eventually, multi_thread, pattern, poll_once, within};
use tokio_epoll_uring::{Load, OpenOptions, SystemHandle, thread_local_system};

fn pipe() -> (Arc<File>, File) {
    let (reader, writer) = std::io::pipe().unwrap();
    let file = |fd: std::os::fd::OwnedFd| File::from(fd);
    (Arc::new(file(reader.into())), file(writer.into()))
}

#[test]
fn more_operations_than_entries_in_any_order_of_awaiting() {
    let dir = TempDir::new();
    for (name, reversed) in [("forward", false), ("backward", true)] {
        let file = dir.direct_file(name);
        multi_thread(2).block_on(within(60, async {
            let system = SystemHandle::with_entries(4).unwrap();
            let alive = Arc::new(AtomicUsize::new(0));
            let write = |i| {
                let data = Tracked::new(&pattern(i, ALIGN), &alive);
                let op = system.write(file.clone(), i * ALIGN as u64, data);
                assert!(system.load().in_flight <= 4);
                op
            };
            let mut ops: Vec<_> = (0..500).map(write).collect();
            if reversed {
                ops.reverse();
            }
            for op in ops {
                assert_eq!(op.await.1.unwrap(), ALIGN);
                assert!(system.load().in_flight <= 4);
            }
            assert_eq!(system.load(), Load { queued: 0, in_flight: 0, capacity: 4 });
            assert_eq!(alive.load(Ordering::SeqCst), 0);
        }));
        let written = std::fs::read(dir.path(name)).unwrap();
        assert!(written.chunks(ALIGN).zip(0..).all(|(page, i)| page == pattern(i, ALIGN)));
        assert_eq!(written.len(), 500 * ALIGN);
    }
}

#[test]
fn a_ring_of_one_entry_keeps_the_order() {
    let dir = TempDir::new();
    let file = dir.direct_file("file");
    multi_thread(1).block_on(within(60, async {
        let system = SystemHandle::with_entries(1).unwrap();
        let alive = Arc::new(AtomicUsize::new(0));
        let write = |i| system.write(file.clone(), 0, Tracked::new(&pattern(i, ALIGN), &alive));
        let ops: Vec<_> = (0..100).map(write).collect();
        for op in ops.into_iter().rev() {
            op.await.1.unwrap();
        }
    }));
    assert!(std::fs::read(dir.path("file")).unwrap() == pattern(99, ALIGN));
}

#[test]
fn operations_proceed_without_being_polled() {
    let dir = TempDir::new();
    let file = dir.direct_file("file");
    let alive = Arc::new(AtomicUsize::new(0));
    multi_thread(1).block_on(within(60, async {
        let system = SystemHandle::with_entries(2).unwrap();
        let write = |i| system.write(file.clone(), i * 4096, Tracked::new(&pattern(i, ALIGN), &alive));
        let ops: Vec<_> = (0..64).map(write).collect();
        assert!(system.load().queued > 0, "the disk was faster than this thread");
        while system.load().in_flight > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(system.load().queued, 0);
        assert_eq!(std::fs::metadata(dir.path("file")).unwrap().len(), 64 * ALIGN as u64);
        for mut op in ops {
            assert!(matches!(poll_once(&mut op), Poll::Ready((_, Ok(ALIGN)))));
        }
    }));
}

#[test]
fn a_write_is_submitted_when_it_is_made() {
    let dir = TempDir::new();
    let file = dir.file("file");
    // No runtime runs: only the kernel can write the bytes to the file.
    let runtime = current_thread();
    let entered = runtime.enter();
    let _op = thread_local_system().unwrap().write(file, 0, b"now".to_vec());
    eventually("bytes in the file", || std::fs::read(dir.path("file")).unwrap() == b"now");
    drop(entered);
}

#[test]
fn a_batch_waits_for_its_submission() {
    let dir = TempDir::new();
    let file = dir.file("file");
    multi_thread(1).block_on(within(60, async {
        let system = SystemHandle::with_entries(8).unwrap();
        let batch = system.batch();
        let ops: Vec<_> = (0..20).map(|i| batch.write(file.clone(), i, vec![i as u8])).collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(system.load(), Load { queued: 20, in_flight: 0, capacity: 8 });
        assert_eq!(std::fs::metadata(dir.path("file")).unwrap().len(), 0);
        batch.submit();
        for op in ops {
            assert_eq!(op.await.1.unwrap(), 1);
        }
        assert_eq!(std::fs::read(dir.path("file")).unwrap(), (0..20).collect::<Vec<u8>>());
        // A poll submits as well.
        let op = batch.write(file.clone(), 20, vec![20]);
        assert_eq!(system.load().queued, 1);
        assert_eq!(op.await.1.unwrap(), 1);
    }));
}

#[test]
fn a_full_ring_does_not_fail_and_does_not_let_more_through() {
    let dir = TempDir::new();
    let file = dir.file("file");
    let (reader, mut writer) = pipe();
    multi_thread(1).block_on(within(60, async {
        let system = SystemHandle::with_entries(2).unwrap();
        // Two reads that do not end until we let them.
        let reads: Vec<_> = (0..2).map(|_| system.read(reader.clone(), 0, vec![0; 1])).collect();
        let write = tokio::spawn(system.write(file, 0, b"x".to_vec()));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(system.load(), Load { queued: 1, in_flight: 2, capacity: 2 });
        assert_eq!(std::fs::metadata(dir.path("file")).unwrap().len(), 0);
        writer.write_all(b"a").unwrap();
        assert_eq!(write.await.unwrap().1.unwrap(), 1);
        writer.write_all(b"b").unwrap();
        for read in reads {
            assert_eq!(read.await.1.unwrap(), 1);
        }
    }));
}

#[test]
fn a_dropped_future_leaves_its_buffer_with_the_kernel() {
    let (reader, mut writer) = pipe();
    let alive = Arc::new(AtomicUsize::new(0));
    let file = Arc::downgrade(&reader);
    multi_thread(1).block_on(within(60, async {
        let system = SystemHandle::with_entries(1).unwrap();
        let mut read = system.read(reader, 0, Tracked::new(&[0; 8], &alive));
        let queued = system.read(file.upgrade().unwrap(), 0, Tracked::new(&[0; 8], &alive));
        assert!(poll_once(&mut read).is_pending());
        assert_eq!(alive.load(Ordering::SeqCst), 2);
        drop(queued);
        assert_eq!(alive.load(Ordering::SeqCst), 1, "the kernel never saw the queued one");
        drop(read);
        drop(system);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(alive.load(Ordering::SeqCst), 1);
        assert!(file.upgrade().is_some(), "the file is kept as well");
        writer.write_all(b"end").unwrap();
        while alive.load(Ordering::SeqCst) > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(file.upgrade().is_none());
    }));
}

#[test]
fn futures_dropped_under_load_never_expose_freed_memory() {
    const PAGES: u64 = 2000;
    let dir = TempDir::new();
    let file = dir.direct_file("file");
    let alive = Arc::new(AtomicUsize::new(0));
    let runtime = multi_thread(2);
    runtime.block_on(within(120, async {
        let tasks: Vec<_> = (0..4)
            .map(|task| {
                let (file, alive) = (file.clone(), alive.clone());
                tokio::spawn(async move {
                    for i in (task..PAGES).step_by(4) {
                        let system = thread_local_system().unwrap();
                        let offset = i * ALIGN as u64;
                        let mut op = system.write(file.clone(), offset, Tracked::new(&pattern(i, ALIGN), &alive));
                        match i % 5 {
                            0 => drop(op),
                            1 => drop(poll_once(&mut op)),
                            2 => drop(tokio::time::timeout(Duration::from_micros(i % 100), op).await),
                            _ => assert_eq!(op.await.1.unwrap(), ALIGN),
                        }
                        let read = system.read(file.clone(), 0, Tracked::new(&[0; 4 * ALIGN], &alive));
                        drop(read);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }));
    eventually("buffers freed while the runtime lives", || alive.load(Ordering::SeqCst) == 0);
    drop(runtime);
    let mut page = vec![0; ALIGN];
    let file = File::open(dir.path("file")).unwrap();
    for i in 0..PAGES {
        file.read_exact_at(&mut page, i * ALIGN as u64).unwrap();
        assert!(page == pattern(i, ALIGN), "page {i}: poison {}", page[0] == POISON);
    }
}

#[test]
fn a_task_whose_results_are_always_there_lets_others_run() {
    let dir = TempDir::new();
    let file = dir.file("file");
    file.write_all_at(&[1], 0).unwrap();
    current_thread().block_on(async {
        let busy = tokio::spawn(async move {
            loop {
                // From the page cache: complete within the submission.
                let (_, read) = thread_local_system().unwrap().read(file.clone(), 0, vec![0; 1]).await;
                assert_eq!(read.unwrap(), 1);
            }
        });
        // If the task above did not yield, this would never run again.
        tokio::time::sleep(Duration::from_millis(20)).await;
        busy.abort();
        assert!(busy.await.unwrap_err().is_cancelled());
    });
}

#[test]
fn a_file_opened_for_a_dropped_future_is_closed() {
    let dir = TempDir::new();
    drop(dir.file("opened-for-nobody"));
    let path = dir.path("opened-for-nobody");
    let is_open = || {
        let entries = std::fs::read_dir("/proc/self/fd").unwrap();
        entries.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok()).any(|target| target == path)
    };
    multi_thread(1).block_on(within(60, async {
        let system = SystemHandle::with_entries(4).unwrap();
        for _ in 0..50 {
            drop(system.open(&path, OpenOptions::new().read(true)));
        }
        let kept = system.open(&path, OpenOptions::new().read(true)).await.unwrap();
        assert!(is_open(), "the test would see it");
        drop(kept);
        eventually("all of them closed", || !is_open());
    }));
}
