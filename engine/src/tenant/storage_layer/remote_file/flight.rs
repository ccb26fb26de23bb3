//! Requests in flight or fetched ahead: everyone who wants the same blocks waits for the same request.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use layer_format::block::BLOCK_SIZE;
use parking_lot::Mutex;
use tokio::sync::SetOnce;

use crate::block_cache::{FetchedAhead, Lease};
use errors::StorageError;
use remote_storage::RequestClass;

/// What was fetched ahead for a sequence may give way to others when the sequence has been idle for this long.
const IDLE_MIN: Duration = Duration::from_secs(1);

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A reader waits for it.
    Read,
    /// A sequence of reads is expected to reach it; it is kept until then.
    Ahead(u64),
    /// The whole file is being fetched.
    Whole,
}

impl Purpose {
    pub(super) fn class(self) -> RequestClass {
        match self {
            Purpose::Read => RequestClass::Read,
            Purpose::Ahead(_) | Purpose::Whole => RequestClass::Prefetch,
        }
    }
}

/// A request for some blocks.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) blocks: Range<u64>,
    pub(super) purpose: Purpose,
    /// Memory for the blocks, until they have landed.
    lease: Mutex<Option<Lease>>,
    landed: SetOnce<Result<Bytes, StorageError>>,
    /// When the sequence for which it was made was last read.
    touched: Mutex<Instant>,
    /// That sequence has passed it.
    is_passed: AtomicBool,
    /// How many of its blocks readers were given.
    taken: AtomicU64,
}

/// Requests, each with some of the blocks that it brings.
pub(super) type Parts = Vec<(Arc<Flight>, Range<u64>)>;

/// The requests of a file.
#[derive(Debug, Default)]
pub(super) struct Flights {
    list: Mutex<Vec<Arc<Flight>>>,
}

/// Ends a request, whatever happens to the task that makes it.
pub(super) struct Landing {
    pub(super) flights: Arc<Flights>,
    pub(super) flight: Arc<Flight>,
}

impl Flight {
    fn new(blocks: Range<u64>, purpose: Purpose, memory: &mut Lease) -> Self {
        let lease = Mutex::new(Some(memory.split(bytes_of(&blocks))));
        let touched = Mutex::new(env::clock::now());
        let (is_passed, taken) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { blocks, purpose, lease, landed: SetOnce::new(), touched, is_passed, taken }
    }

    /// The blocks, once they are there.
    pub(super) async fn bytes(&self) -> Result<&Bytes, StorageError> {
        self.landed.wait().await.as_ref().map_err(again)
    }

    /// The blocks `part` of `bytes`, which must be this request's, for whoever reads them.
    pub(super) fn part(&self, bytes: &Bytes, part: &Range<u64>) -> Bytes {
        self.taken.fetch_add(part.end - part.start, Ordering::Relaxed);
        let at = |block: u64| (block - self.blocks.start) as usize * BLOCK_SIZE;
        bytes.slice(at(part.start)..at(part.end))
    }

    /// Whether all of its blocks were there and were read.
    fn is_used_up(&self) -> bool {
        self.landed.initialized() && self.taken.load(Ordering::Relaxed) >= self.blocks.end - self.blocks.start
    }
}

/// Size of the blocks in bytes.
pub(super) fn bytes_of(blocks: &Range<u64>) -> u64 {
    (blocks.end - blocks.start) * BLOCK_SIZE as u64
}

impl Flights {
    /// Splits `wanted` into what known requests will bring, and the rest.
    pub(super) fn join(&self, wanted: &[Range<u64>]) -> (Parts, Vec<Range<u64>>) {
        let list = self.list.lock();
        Self::split(&list, wanted)
    }

    fn split(list: &[Arc<Flight>], wanted: &[Range<u64>]) -> (Parts, Vec<Range<u64>>) {
        let mut joined = Vec::new();
        let mut rest = wanted.to_vec();
        for flight in list {
            let mut left = Vec::with_capacity(rest.len());
            for range in rest {
                let common = range.start.max(flight.blocks.start)..range.end.min(flight.blocks.end);
                if common.start >= common.end {
                    left.push(range);
                    continue;
                }
                left.extend(
                    [range.start..common.start, common.end..range.end].into_iter().filter(|cut| !cut.is_empty()),
                );
                joined.push((Arc::clone(flight), common));
            }
            rest = left;
        }
        rest.sort_unstable_by_key(|range| range.start);
        (joined, rest)
    }

    /// As [`Flights::join`], and adds those of the requests `planned`, for which `memory` must suffice, that bring
    /// some of the rest. Returns all requests that bring something, and the new ones, which the caller must make.
    pub(super) fn join_or_add(
        &self,
        wanted: &[Range<u64>],
        purpose: Purpose,
        planned: &[Range<u64>],
        mut memory: Lease,
    ) -> (Parts, Vec<Arc<Flight>>) {
        let mut list = self.list.lock();
        let (mut joined, rest) = Self::split(&list, wanted);
        let brings = |blocks: &&Range<u64>| rest.iter().any(|some| some.start < blocks.end && blocks.start < some.end);
        let needed = planned.iter().filter(brings).cloned();
        let new: Vec<_> = needed.map(|blocks| Arc::new(Flight::new(blocks, purpose, &mut memory))).collect();
        joined.extend(Self::split(&new, &rest).0);
        list.extend(new.iter().cloned());
        (joined, new)
    }

    /// Notes that a sequence has advanced to block `at`, or has ended: what was fetched ahead for it is dropped where
    /// it lies before that and was read, and may give way to others where it was overtaken.
    pub(super) fn passed(&self, stream: u64, at: Option<u64>) {
        let now = env::clock::now();
        self.list.lock().retain(|flight| {
            if flight.purpose != Purpose::Ahead(stream) {
                return true;
            }
            *flight.touched.lock() = now;
            let Some(at) = at else { return false };
            if flight.blocks.end <= at {
                flight.is_passed.store(true, Ordering::Relaxed);
            }
            !(flight.is_passed.load(Ordering::Relaxed) && flight.is_used_up())
        });
    }

    fn remove(&self, flight: &Arc<Flight>) {
        self.list.lock().retain(|other| !Arc::ptr_eq(other, flight));
    }
}

impl Landing {
    /// Passes the blocks on to everyone who waits.
    pub(super) fn land(self, result: Result<Bytes, StorageError>) {
        self.end(result);
    }

    fn end(&self, result: Result<Bytes, StorageError>) {
        let is_kept = result.is_ok() && matches!(self.flight.purpose, Purpose::Ahead(_));
        let lease = self.flight.lease.lock().take();
        let _ = self.flight.landed.set(result.map(|bytes| match lease {
            Some(lease) => lease.hold(bytes),
            None => bytes,
        }));
        if !is_kept {
            self.flights.remove(&self.flight);
        }
    }
}

impl Drop for Landing {
    fn drop(&mut self) {
        if !self.flight.landed.initialized() {
            self.end(Err(StorageError::Internal("a request for blocks has ended early".to_owned())));
        }
    }
}

/// A request fetched ahead, as seen by the accounting of memory for such requests.
pub(super) struct Window {
    flights: Weak<Flights>,
    flight: Weak<Flight>,
}

impl Window {
    pub(super) fn new(flights: &Arc<Flights>, flight: &Arc<Flight>) -> Self {
        Self { flights: Arc::downgrade(flights), flight: Arc::downgrade(flight) }
    }
}

impl FetchedAhead for Window {
    fn is_gone(&self) -> bool {
        self.flight.strong_count() == 0
    }

    fn is_idle(&self, now: Instant) -> bool {
        let Some(flight) = self.flight.upgrade() else { return true };
        let is_idle = || now.saturating_duration_since(*flight.touched.lock()) >= IDLE_MIN;
        flight.landed.initialized() && (flight.is_passed.load(Ordering::Relaxed) || is_idle())
    }

    fn give_up(&self) {
        if let (Some(flights), Some(flight)) = (self.flights.upgrade(), self.flight.upgrade()) {
            flights.remove(&flight);
        }
    }
}

/// The same error for another waiter.
fn again(error: &StorageError) -> StorageError {
    match error {
        StorageError::Io { operation, path, offset, source } => {
            let source = match source.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::new(source.kind(), source.to_string()),
            };
            StorageError::Io { operation, path: path.clone(), offset: *offset, source }
        }
        StorageError::Corrupt { path, offset, reason } => {
            StorageError::Corrupt { path: path.clone(), offset: *offset, reason: reason.clone() }
        }
        StorageError::Remote { operation, object, failure, reason } => {
            StorageError::Remote { operation, object: object.clone(), failure: *failure, reason: reason.clone() }
        }
        StorageError::Shutdown => StorageError::Shutdown,
        other => StorageError::Internal(other.to_string()),
    }
}
