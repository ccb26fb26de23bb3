//! The budget of local disk space: intake slows down as room runs out, and is refused before the disk is full.
//!
//! Whoever takes in values calls [`DiskBudget::admit`] first. A keeper (`tenant::eviction`) periodically measures,
//! evicts, and publishes the remaining room ([`DiskBudget::set`]); between two measurements admitted bytes are
//! subtracted from it.
//! Without a keeper there is no limit.

mod hold;
mod pace;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tokio::sync::{Notify, watch};

use errors::StorageError;
pub use hold::Hold;
use metrics::METRICS;
use pace::Pace;

/// How long intake waits for room before it is refused.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a write that met a full disk waits for the keeper.
const KEEPER_TIMEOUT: Duration = Duration::from_secs(10);

/// How intake is treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Level {
    /// There is enough room.
    Open,
    /// Room is running out faster than it can be made: each byte is delayed.
    Slow,
    /// There is no room.
    Refuse,
}

impl Level {
    fn of(room: i64, slow_below: i64) -> Self {
        match room {
            ..=0 => Level::Refuse,
            room if room < slow_below => Level::Slow,
            _ => Level::Open,
        }
    }
}

/// The keeper's last measurement.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Measured {
    /// Bytes that may still be taken in; negative if there are too many already.
    pub room: i64,
    /// Bytes that may be taken in all: the budget, or the file system.
    pub capacity: u64,
    /// Intake slows down below this room.
    pub slow_below: i64,
    /// Layers are evicted below this room.
    pub evict_below: i64,
    /// Bytes of layers on the local disk, resident and partially cached.
    pub resident: u64,
    /// Bytes of layers that are not in the bucket yet.
    pub not_uploaded: u64,
    /// Bytes of values in in-memory layers and their ephemeral files.
    pub in_memory: u64,
    /// Bytes of imports under way.
    pub importing: u64,
    /// Free bytes of the file system, if it could be queried.
    pub disk_free: Option<u64>,
    /// What to do about a lack of room, for humans.
    pub advice: String,
}

impl Measured {
    /// How intake is treated if nothing was taken in since.
    pub(crate) fn level(&self) -> Level {
        Level::of(self.room, self.slow_below)
    }
}

/// The budget of one working directory. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct DiskBudget {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    room: AtomicI64,
    /// All bytes ever subtracted from `room`.
    used: AtomicU64,
    /// Bytes of files that belong to no timeline yet.
    held: AtomicU64,
    /// Those of them that are not written yet.
    promised: AtomicU64,
    /// What the layers and everything else may take in all.
    capacity: AtomicU64,
    slow_below: AtomicI64,
    evict_below: AtomicI64,
    has_keeper: AtomicBool,
    /// Nanoseconds of delay that are due but were too short to sleep for.
    owed: AtomicU64,
    measured: Mutex<Measured>,
    /// Wakes the keeper.
    pressed: Notify,
    /// Number of completed keeper rounds; wakes those who wait for room.
    rounds: watch::Sender<u64>,
}

impl Default for Inner {
    fn default() -> Self {
        Self {
            room: AtomicI64::new(i64::MAX),
            used: AtomicU64::new(0),
            held: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            capacity: AtomicU64::new(u64::MAX),
            slow_below: AtomicI64::new(0),
            evict_below: AtomicI64::new(0),
            has_keeper: AtomicBool::new(false),
            owed: AtomicU64::new(0),
            measured: Mutex::default(),
            pressed: Notify::new(),
            rounds: watch::Sender::new(0),
        }
    }
}

impl DiskBudget {
    /// Waits until `bytes` more may be taken in.
    ///
    /// # Errors
    /// [`StorageError::NoRoom`] after a timeout; the message says what to do. Nothing is lost, and the call may be
    /// repeated.
    pub async fn admit(&self, bytes: u64) -> Result<(), StorageError> {
        if self.room() <= self.inner.evict_below.load(Ordering::Relaxed) {
            self.inner.pressed.notify_one();
            if self.level() != Level::Open {
                self.wait_for_room(bytes).await?;
            }
        }
        self.note_used(bytes);
        Ok(())
    }

    /// How intake is treated now.
    pub fn level(&self) -> Level {
        Level::of(self.room(), self.inner.slow_below.load(Ordering::Relaxed))
    }

    /// Bytes that may still be taken in, as far as known.
    pub fn room(&self) -> i64 {
        self.inner.room.load(Ordering::Relaxed)
    }

    /// Bytes that may be taken in all; without a keeper there is no limit.
    pub fn capacity(&self) -> u64 {
        self.inner.capacity.load(Ordering::Relaxed)
    }

    /// Whether `bytes` could be fetched into the local cache without causing evictions.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.room().saturating_sub(bytes) > self.inner.evict_below.load(Ordering::Relaxed)
    }

    /// Whether `bytes` could be written where nothing can be evicted: three times as much as causes evictions would
    /// still be free for what is taken in.
    pub fn has_ample_room_for(&self, bytes: u64) -> bool {
        let keep = self.inner.evict_below.load(Ordering::Relaxed).saturating_mul(3);
        self.room().saturating_sub(signed(bytes)) > keep
    }

    /// Whether `bytes` could be written without slowing intake down. If not, the keeper makes room.
    pub fn can_spare(&self, bytes: u64) -> bool {
        let can = self.room().saturating_sub(signed(bytes)) >= self.inner.slow_below.load(Ordering::Relaxed);
        if !can {
            self.inner.pressed.notify_one();
        }
        can
    }

    /// Notes that `bytes` were written.
    pub fn note_used(&self, bytes: u64) {
        // Nobody writes that much; the limit keeps the sum from wrapping around.
        let bytes = bytes.min(1 << 40);
        self.inner.used.fetch_add(bytes, Ordering::Relaxed);
        self.inner.room.fetch_sub(signed(bytes), Ordering::Relaxed);
    }

    /// The keeper's last measurement; `None` if there is no keeper.
    pub fn measured(&self) -> Option<Measured> {
        self.inner.has_keeper.load(Ordering::Relaxed).then(|| self.inner.measured.lock().clone())
    }

    /// Marks the start of a measurement, for [`DiskBudget::set`].
    pub fn begin(&self) -> u64 {
        self.inner.used.load(Ordering::Relaxed)
    }

    /// Publishes the measurement of a round that began at `begun`. It may not include what was taken in since, so
    /// that is subtracted.
    pub fn set(&self, measured: Measured, begun: u64) {
        let inner = &self.inner;
        let meanwhile = signed(self.begin().saturating_sub(begun));
        inner.slow_below.store(measured.slow_below, Ordering::Relaxed);
        inner.evict_below.store(measured.evict_below, Ordering::Relaxed);
        inner.capacity.store(measured.capacity, Ordering::Relaxed);
        inner.room.store(measured.room.saturating_sub(meanwhile), Ordering::Relaxed);
        *inner.measured.lock() = measured;
        inner.has_keeper.store(true, Ordering::Relaxed);
        inner.rounds.send_modify(|round| *round += 1);
    }

    /// Returns when room is short and the keeper should act at once.
    pub async fn pressed(&self) {
        self.inner.pressed.notified().await;
    }

    /// Asks the keeper to make room after a write met a full disk, and waits for it. Returns whether to try again.
    pub async fn make_room(&self) -> bool {
        let inner = &self.inner;
        if !inner.has_keeper.load(Ordering::Relaxed) {
            return false;
        }
        let mut rounds = inner.rounds.subscribe();
        // A round already under way may have measured before the disk was full; the one after it has not.
        let enough = *rounds.borrow() + 2;
        let waiting = async {
            while *rounds.borrow_and_update() < enough {
                inner.room.fetch_min(0, Ordering::Relaxed);
                inner.pressed.notify_one();
                if rounds.changed().await.is_err() {
                    return;
                }
            }
        };
        env::clock::timeout(KEEPER_TIMEOUT, waiting).await.is_ok()
    }

    async fn wait_for_room(&self, bytes: u64) -> Result<(), StorageError> {
        let started = env::clock::now();
        let result = self.wait_patiently(bytes).await;
        let waited = env::clock::now().saturating_duration_since(started);
        METRICS.intake_slowed_seconds.inc_by(waited.as_secs_f64());
        METRICS.intake_refused.inc_by(u64::from(result.is_err()));
        result
    }

    async fn wait_patiently(&self, bytes: u64) -> Result<(), StorageError> {
        let mut rounds = self.inner.rounds.subscribe();
        let deadline = env::clock::now() + PATIENCE;
        let mut slowed_until = None;
        loop {
            rounds.mark_unchanged();
            let left = deadline.saturating_duration_since(env::clock::now());
            match self.level() {
                Level::Open => return Ok(()),
                Level::Slow => {
                    // Reconsider after each keeper round, since the level may have changed. Time already waited
                    // counts, because rounds may come faster than any wait ends.
                    let now = env::clock::now();
                    let until = *slowed_until.get_or_insert_with(|| now + self.due(bytes));
                    let due = until.saturating_duration_since(now);
                    if due.is_zero() || env::clock::timeout(due, rounds.changed()).await.is_err() {
                        return Ok(());
                    }
                }
                Level::Refuse if left.is_zero() => return Err(StorageError::NoRoom(self.refusal())),
                Level::Refuse => {
                    self.inner.pressed.notify_one();
                    let _ = env::clock::timeout(left, rounds.changed()).await;
                }
            }
        }
    }

    /// Waits until `bytes` could be used and intake would still not be slowed.
    async fn wait_for_spare(&self, bytes: u64) -> Result<(), StorageError> {
        let mut rounds = self.inner.rounds.subscribe();
        let deadline = env::clock::now() + PATIENCE;
        loop {
            rounds.mark_unchanged();
            if self.can_spare(bytes) {
                return Ok(());
            }
            let left = deadline.saturating_duration_since(env::clock::now());
            if left.is_zero() {
                let advice = self.inner.measured.lock().advice.clone();
                return Err(StorageError::NoRoom(format!("the local disk has no room to spare: {advice}")));
            }
            let _ = env::clock::timeout(left, rounds.changed()).await;
        }
    }

    /// How long to delay `bytes` now.
    fn due(&self, bytes: u64) -> Duration {
        let pace = Pace { room: self.room(), slow_below: self.inner.slow_below.load(Ordering::Relaxed) };
        let nanos = u64::try_from(pace.delay(bytes).as_nanos()).unwrap_or(u64::MAX);
        let owed = self.inner.owed.fetch_add(nanos, Ordering::Relaxed).saturating_add(nanos);
        if owed < pace::SHORTEST.as_nanos() as u64 {
            return Duration::ZERO;
        }
        self.inner.owed.fetch_sub(owed, Ordering::Relaxed);
        Duration::from_nanos(owed).min(pace::LONGEST)
    }

    fn refusal(&self) -> String {
        let measured = self.inner.measured.lock();
        format!("the intake is refused, for the local disk has no room: {}", measured.advice)
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
