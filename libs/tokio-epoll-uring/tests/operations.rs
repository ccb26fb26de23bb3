//! Every operation does what its system call does.

mod common;

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use common::{TempDir, current_thread, multi_thread, pattern, within};
use tokio_epoll_uring::{OpenOptions, Slice, is_available, thread_local_system};

#[test]
fn io_uring_is_available_here() {
    is_available().unwrap();
}

#[test]
fn write_then_read_on_both_runtimes() {
    let dir = TempDir::new();
    for (name, runtime) in [("multi", multi_thread(2)), ("current", current_thread())] {
        let file = dir.file(name);
        runtime.block_on(within(30, async {
            let system = thread_local_system().unwrap();
            let data = Arc::new(pattern(1, 100_000));
            let ((file, _), written) = system.write(file, 12_345, data.clone()).await;
            assert_eq!(written.unwrap(), 100_000);
            let ((file, buf), read) = system.read(file, 12_345, Vec::with_capacity(200_000)).await;
            assert_eq!(read.unwrap(), 100_000, "short at the end of the file");
            assert!(buf == *data);
            let ((_, buf), read) = system.read(file, 1 << 30, vec![7; 10]).await;
            assert_eq!((read.unwrap(), &buf[..]), (0, &[7; 10][..]));
        }));
        assert_eq!(std::fs::metadata(dir.path(name)).unwrap().len(), 112_345);
    }
}

#[test]
fn worker_tasks_have_rings_of_their_own() {
    let dir = TempDir::new();
    let file = dir.file("file");
    multi_thread(2).block_on(within(60, async {
        let tasks: Vec<_> = (0..64u64)
            .map(|i| {
                let file = file.clone();
                tokio::spawn(async move {
                    let data = pattern(i, 4096);
                    let write = thread_local_system().unwrap().write(file, i * 4096, data).await;
                    let ((file, data), written) = write;
                    assert_eq!(written.unwrap(), 4096);
                    tokio::task::yield_now().await;
                    let ((_, buf), read) =
                        thread_local_system().unwrap().read(file, i * 4096, Vec::with_capacity(4096)).await;
                    assert_eq!(read.unwrap(), 4096);
                    assert!(buf == data);
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    }));
}

#[test]
fn sub_ranges() {
    let dir = TempDir::new();
    let file = dir.file("file");
    multi_thread(1).block_on(within(30, async {
        let system = thread_local_system().unwrap();
        let ((file, slice), written) = system.write(file, 0, Slice::new(b"0123456789".to_vec(), 3..7)).await;
        assert_eq!(written.unwrap(), 4);
        assert_eq!(slice.into_inner(), b"0123456789");
        let mut buf = Vec::with_capacity(16);
        buf.extend_from_slice(b"ab");
        let ((_, slice), read) = system.read(file, 1, Slice::new_mut(buf, 2..4)).await;
        assert_eq!((read.unwrap(), &slice.into_inner()[..]), (2, &b"ab45"[..]));
    }));
    assert_eq!(std::fs::read(dir.path("file")).unwrap(), b"3456");
}

#[test]
fn vectored() {
    let dir = TempDir::new();
    let file = dir.file("file");
    multi_thread(1).block_on(within(30, async {
        let system = thread_local_system().unwrap();
        let parts = vec![pattern(1, 5000), Vec::new(), pattern(2, 1), pattern(3, 9000)];
        let ((file, parts), written) = system.writev(file, 100, parts).await;
        assert_eq!(written.unwrap(), 14_001);
        let bufs = vec![Vec::with_capacity(5000), Vec::with_capacity(1), Vec::with_capacity(8000), vec![9; 5000]];
        let sizes: Vec<_> = bufs.iter().map(Vec::capacity).collect();
        assert_eq!(sizes, [5000, 1, 8000, 5000]);
        let ((_, bufs), read) = system.readv(file, 100, bufs).await;
        assert_eq!(read.unwrap(), 14_001);
        assert!(bufs[0] == parts[0] && bufs[1] == parts[2] && bufs[2] == parts[3][..8000]);
        assert!(bufs[3][..1000] == parts[3][8000..] && bufs[3][1000..] == [9; 4000]);
    }));
}

#[test]
fn sync_allocate_truncate_stat() {
    let dir = TempDir::new();
    let file = dir.file("file");
    multi_thread(1).block_on(within(30, async {
        let system = thread_local_system().unwrap();
        let (file, result) = system.fallocate(file, 0, 0, 1 << 20).await;
        result.unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert!(file.metadata().unwrap().blocks() * 512 >= 1 << 20);
        let ((file, _), written) = system.write(file, 0, vec![1; 8192]).await;
        assert_eq!(written.unwrap(), 8192);
        let ((file, _), written) = system.write_durably(file, 4096, vec![2; 5000]).await;
        assert_eq!(written.unwrap(), 5000);
        assert_eq!(std::fs::read(dir.path("file")).unwrap()[4095..9097], [&[1][..], &[2; 5000], &[0]].concat());
        let write_out = libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
        let (file, result) = system.sync_file_range(file, 0, 8192, write_out).await;
        result.unwrap();
        let (file, result) = system.fdatasync(file).await;
        result.unwrap();
        let (file, result) = system.ftruncate(file, 5000).await;
        result.unwrap();
        let (file, result) = system.fsync(file).await;
        result.unwrap();
        let (file, stat) = system.statx(file).await;
        let (stat, by_path) = (stat.unwrap(), system.statx_path(dir.path("file")).await.unwrap());
        let metadata = file.metadata().unwrap();
        assert_eq!((stat.stx_size, stat.stx_ino), (5000, metadata.ino()));
        assert_eq!((by_path.stx_size, by_path.stx_ino), (5000, metadata.ino()));
    }));
}

#[test]
fn open_creates_and_refuses() {
    let dir = TempDir::new();
    multi_thread(1).block_on(within(30, async {
        let system = thread_local_system().unwrap();
        let path = dir.path("file");
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        let file = system.open(&path, &options).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let ((file, _), written) = system.write(file, 0, b"xyz".to_vec()).await;
        assert_eq!(written.unwrap(), 3);
        drop(File::from(file));
        let exists = system.open(&path, &options).await.unwrap_err();
        assert_eq!(exists.kind(), io::ErrorKind::AlreadyExists);
        let absent = system.open(dir.path("absent"), OpenOptions::new().read(true)).await.unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        let absent = system.statx_path(dir.path("absent")).await.unwrap_err();
        assert_eq!(absent.kind(), io::ErrorKind::NotFound);
        let zero = system.open("a\0b", OpenOptions::new().read(true)).await.unwrap_err();
        assert_eq!(zero.kind(), io::ErrorKind::InvalidInput);
    }));
}

#[test]
fn errors_give_the_resources_back() {
    let dir = TempDir::new();
    let file = dir.file("file");
    multi_thread(1).block_on(within(30, async {
        let system = thread_local_system().unwrap();
        let ((_, buf), result) = system.write(file.clone(), u64::MAX, b"abc".to_vec()).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL), "not 'at the cursor'");
        assert_eq!(buf, b"abc");
        let read_only = Arc::new(File::open(dir.path("file")).unwrap());
        let ((_, buf), result) = system.write(read_only, 0, b"abc".to_vec()).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EBADF));
        assert_eq!(buf, b"abc");
        let (_, result) = system.ftruncate(file.clone(), u64::MAX).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let many = (0..1025).map(|_| vec![0]).collect();
        let ((_, bufs), result) = system.writev(file, 0, many).await;
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(bufs.len(), 1025);
    }));
}

#[test]
fn without_a_runtime_there_is_no_ring() {
    let error = thread_local_system().err().expect("no runtime");
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}
