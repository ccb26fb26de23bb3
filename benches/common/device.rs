//! What the disk itself gives: a new file written in large blocks, with direct I/O through io_uring at several depths,
//! or through the page cache.

use std::collections::VecDeque;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use rustix::fs::{Mode, OFlags, fdatasync, open};
use tokio_epoll_uring::thread_local_system;
use virtual_file::AlignedBuf;

use crate::artifact::{Unit, Validity};

/// The size of the buffered writer's buffers.
const BLOCK: usize = 1 << 20;

/// How the file is written: with this many direct writes in flight, or through the page cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    Direct(usize),
    #[allow(dead_code, reason = "not every benchmark writes like this")]
    Buffered,
}

impl Way {
    pub fn name(self) -> String {
        match self {
            Way::Direct(depth) => format!("direct_depth_{depth}"),
            Way::Buffered => "buffered".to_owned(),
        }
    }
}

/// A file that is written again and again.
pub struct Device {
    path: PathBuf,
    volume: usize,
    block: Arc<AlignedBuf>,
}

impl Device {
    /// `volume` is in bytes, and rounded down to whole blocks.
    pub fn new(path: PathBuf, volume: usize) -> Self {
        let mut block = AlignedBuf::with_capacity(BLOCK);
        block.whole_mut().iter_mut().enumerate().for_each(|(i, byte)| *byte = (i * 31) as u8);
        Self { path, volume: volume / BLOCK * BLOCK, block: Arc::new(block) }
    }

    /// Writes the volume once to a new file, and returns MiB/s. The file stays.
    pub async fn write(&self, way: Way, sync: bool) -> f64 {
        // The file may be absent; truncating an existing one would be timed.
        self.remove();
        let start = Instant::now();
        let file = match way {
            Way::Direct(depth) => self.direct(depth).await,
            Way::Buffered => self.buffered(),
        };
        if sync {
            fdatasync(file.as_ref()).expect("sync");
        }
        (self.volume >> 20) as f64 / start.elapsed().as_secs_f64()
    }

    async fn direct(&self, depth: usize) -> Arc<OwnedFd> {
        let file = create(&self.path, OFlags::DIRECT);
        let system = thread_local_system().expect("io_uring");
        let mut in_flight = VecDeque::new();
        for offset in (0..self.volume).step_by(BLOCK) {
            if in_flight.len() == depth {
                finish(in_flight.pop_front()).await;
            }
            in_flight.push_back(system.write(Arc::clone(&file), offset as u64, Arc::clone(&self.block)));
        }
        while !in_flight.is_empty() {
            finish(in_flight.pop_front()).await;
        }
        file
    }

    fn buffered(&self) -> Arc<OwnedFd> {
        let file = create(&self.path, OFlags::empty());
        let mut writer = std::fs::File::from(file.try_clone().expect("clone"));
        (0..self.volume / BLOCK).for_each(|_| writer.write_all(&self.block).expect("write"));
        file
    }

    /// Counts the bytes of the file that equal those that were to be written.
    pub fn compare(&self) -> Validity {
        let found = std::fs::read(&self.path).expect("read");
        let different = found.chunks(BLOCK).filter(|block| *block != &self.block[..]).map(|block| block.len() as u64);
        Validity {
            unit: Unit::Bytes,
            expected: self.volume as u64,
            seen: found.len() as u64,
            compared: found.len() as u64,
            different: different.sum(),
        }
    }

    pub fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

fn create(path: &Path, flags: OFlags) -> Arc<OwnedFd> {
    let flags = flags | OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
    Arc::new(open(path, flags, Mode::from_raw_mode(0o600)).expect("create file"))
}

type WriteOp = tokio_epoll_uring::Op<tokio_epoll_uring::Write<Arc<OwnedFd>, Arc<AlignedBuf>>>;

async fn finish(op: Option<WriteOp>) {
    if let Some(op) = op {
        assert_eq!(op.await.1.expect("write"), BLOCK);
    }
}
