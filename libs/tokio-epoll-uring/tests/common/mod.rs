//! Shared by the tests: a temporary directory, runtimes, and buffers that track when they are freed.
#![allow(dead_code, reason = "not every test binary uses everything")]

use std::fs::File;
use std::future::Future;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use tokio::runtime::Runtime;
use tokio_epoll_uring::{IoBuf, IoBufMut};

/// A separate directory for each test.
pub struct TempDir(PathBuf);

impl TempDir {
    pub fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("tokio-epoll-uring-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn file(&self, name: &str) -> Arc<File> {
        Arc::new(create(&self.path(name), 0))
    }

    /// A file that bypasses the page cache, so that I/O takes time.
    pub fn direct_file(&self, name: &str) -> Arc<File> {
        Arc::new(create(&self.path(name), libc::O_DIRECT))
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn create(path: &Path, flags: i32) -> File {
    File::options().read(true).write(true).create_new(true).custom_flags(flags).open(path).unwrap()
}

pub fn multi_thread(workers: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().unwrap()
}

pub fn current_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Number of open files of this process.
pub fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// Fails the test instead of hanging.
pub async fn within<F: Future>(seconds: u64, future: F) -> F::Output {
    tokio::time::timeout(Duration::from_secs(seconds), future).await.expect("hangs")
}

/// Polls once.
pub fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Contents that differ at every position and between seeds.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let word = |i: u64| (seed << 40 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
    (0..len.div_ceil(8) as u64).flat_map(word).take(len).collect()
}

/// Alignment of a [`Tracked`] buffer: enough for direct I/O.
pub const ALIGN: usize = 4096;

/// An aligned buffer that is poisoned and counted when it is freed.
pub struct Tracked {
    memory: Vec<u8>,
    begin: usize,
    len: usize,
    alive: Arc<AtomicUsize>,
}

impl Tracked {
    pub fn new(bytes: &[u8], alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::SeqCst);
        let mut memory = vec![0; bytes.len() + ALIGN];
        let begin = memory.as_ptr().align_offset(ALIGN);
        memory[begin..][..bytes.len()].copy_from_slice(bytes);
        Self { memory, begin, len: bytes.len(), alive: alive.clone() }
    }

    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.begin..][..self.len]
    }
}

/// Content of a freed buffer.
pub const POISON: u8 = 0xEE;

impl Drop for Tracked {
    fn drop(&mut self) {
        // A write that is still in progress would put this into the file.
        self.memory.fill(POISON);
        std::hint::black_box(&self.memory);
        self.alive.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: the heap block of a Vec does not move with the Vec, and is initialized entirely.
unsafe impl IoBuf for Tracked {
    fn stable_ptr(&self) -> *const u8 {
        self.bytes().as_ptr()
    }

    fn bytes_init(&self) -> usize {
        self.len
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Tracked {
    fn stable_mut_ptr(&mut self) -> *mut u8 {
        self.memory[self.begin..].as_mut_ptr()
    }

    fn bytes_total(&self) -> usize {
        self.len
    }

    unsafe fn set_init(&mut self, bytes: usize) {
        assert!(bytes <= self.len);
    }
}

/// Waits until a condition holds.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(30), "not within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a future like an executor that knows nothing about tokio.
pub fn block_on<F: Future + Unpin>(mut future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    loop {
        match Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}
