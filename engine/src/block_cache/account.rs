//! Memory for blocks in transit from the bucket: it is handed out as [`Lease`]s, and whoever finds none free waits in
//! FIFO order.
//!
//! Waiting cannot deadlock as long as nobody waits for a lease while holding another of the same account that others
//! wait for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

/// The granularity of leases, in bytes.
const UNIT: u64 = 1024;

/// A pool of bytes from which leases are taken.
#[derive(Debug)]
pub(crate) struct Account {
    /// Units not leased.
    free: Semaphore,
    size: AtomicU64,
    /// Units to be retired when they are returned: the account shrank while they were leased.
    excess: Mutex<u64>,
}

/// Part of an account, returned when dropped.
pub(crate) struct Lease {
    account: Arc<Account>,
    units: u64,
}

/// Bytes together with the lease on the memory that holds them.
struct Leased {
    bytes: Bytes,
    _lease: Lease,
}

impl Account {
    /// An account of `bytes` bytes.
    pub(super) fn new(bytes: u64) -> Arc<Self> {
        let units = bytes / UNIT;
        let free = Semaphore::new(units as usize);
        Arc::new(Self { free, size: AtomicU64::new(units), excess: Mutex::new(0) })
    }

    /// Changes the size to `bytes`.
    pub(super) fn resize(&self, bytes: u64) {
        let mut excess = self.excess.lock();
        let (old, new) = (self.size.load(Ordering::Relaxed), bytes / UNIT);
        self.size.store(new, Ordering::Relaxed);
        if new > old {
            let known = (new - old).min(*excess);
            *excess -= known;
            self.free.add_permits((new - old - known) as usize);
        } else {
            *excess += old - new - self.free.forget_permits((old - new) as usize) as u64;
        }
    }

    /// Total size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed) * UNIT
    }

    /// Bytes leased.
    pub(crate) fn used(&self) -> u64 {
        let free = self.free.available_permits() as u64;
        (self.size.load(Ordering::Relaxed) + *self.excess.lock()).saturating_sub(free) * UNIT
    }

    /// Takes memory for `bytes`, waiting in turn. A request for more than the whole account gets the whole account.
    pub(crate) async fn take(self: &Arc<Self>, bytes: u64) -> Lease {
        let units = self.units(bytes);
        // The semaphore is never closed.
        let granted = self.free.acquire_many(units as u32).await.map(|permit| permit.forget());
        Lease { account: Arc::clone(self), units: granted.map_or(0, |()| units) }
    }

    /// Takes memory for `bytes` if it is free now.
    pub(crate) fn try_take(self: &Arc<Self>, bytes: u64) -> Option<Lease> {
        let units = bytes.div_ceil(UNIT);
        self.free.try_acquire_many(u32::try_from(units).ok()?).ok()?.forget();
        Some(Lease { account: Arc::clone(self), units })
    }

    /// Takes as much of `bytes` as is free now.
    pub(crate) fn try_take_some(self: &Arc<Self>, bytes: u64) -> Lease {
        loop {
            let bytes = bytes.min(self.free.available_permits() as u64 * UNIT);
            if let Some(lease) = self.try_take(bytes) {
                return lease;
            }
        }
    }

    fn units(&self, bytes: u64) -> u64 {
        bytes.div_ceil(UNIT).min(self.size.load(Ordering::Relaxed))
    }
}

impl Lease {
    /// Bytes leased.
    pub(crate) fn bytes(&self) -> u64 {
        self.units * UNIT
    }

    /// Splits off a lease of `bytes`, or of everything if there is less.
    pub(crate) fn split(&mut self, bytes: u64) -> Lease {
        let units = bytes.div_ceil(UNIT).min(self.units);
        self.units -= units;
        Lease { account: Arc::clone(&self.account), units }
    }

    /// Ties this lease to `bytes`, which live in its memory: the lease ends when their last reference is dropped.
    pub(crate) fn hold(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Leased { bytes, _lease: self })
    }
}

impl AsRef<[u8]> for Leased {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut excess = self.account.excess.lock();
        let gone = self.units.min(*excess);
        *excess -= gone;
        self.account.free.add_permits((self.units - gone) as usize);
    }
}

impl fmt::Debug for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lease({} bytes)", self.bytes())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn account(kib: u64) -> Arc<Account> {
        Account::new(kib * UNIT)
    }

    #[tokio::test]
    async fn what_is_lent_comes_back() {
        let account = account(100);
        let mut lease = account.take(60 * UNIT - 1).await;
        assert_eq!((account.used(), lease.bytes()), (60 * UNIT, 60 * UNIT));
        assert!(account.try_take(41 * UNIT).is_none());
        assert_eq!(account.try_take_some(50 * UNIT).bytes(), 40 * UNIT);
        let (part, rest) = (lease.split(20 * UNIT), lease);
        drop(rest);
        assert_eq!(account.used(), 20 * UNIT);
        let bytes = part.hold(Bytes::from_static(b"some bytes"));
        let piece = bytes.slice(5..);
        drop(bytes);
        assert_eq!((&piece[..], account.used()), (&b"bytes"[..], 20 * UNIT));
        drop(piece);
        assert_eq!(account.used(), 0);
    }

    #[tokio::test]
    async fn who_finds_none_waits_his_turn() {
        let account = account(10);
        let first = account.take(8 * UNIT).await;
        let large = Arc::clone(&account);
        let large = tokio::spawn(async move { large.take(1 << 30).await });
        tokio::task::yield_now().await;
        let small = tokio::time::timeout(Duration::from_millis(10), account.take(UNIT)).await;
        assert!(small.is_err() && !large.is_finished(), "a later one comes later, however little he wants");
        drop(first);
        assert_eq!(large.await.expect("granted").bytes(), 10 * UNIT, "all that there is");
        assert_eq!(account.used(), 0);
    }

    #[tokio::test]
    async fn its_size_changes_while_parts_are_lent() {
        let account = account(10);
        let (one, other) = (account.take(4 * UNIT).await, account.take(4 * UNIT).await);
        account.resize(5 * UNIT);
        assert_eq!(account.used(), 8 * UNIT);
        drop(one);
        assert!(account.try_take(2 * UNIT).is_none() && account.try_take(UNIT).is_some());
        account.resize(20 * UNIT);
        assert_eq!(account.used(), 4 * UNIT);
        drop(other);
        assert_eq!((account.used(), account.take(1 << 30).await.bytes()), (0, 20 * UNIT));
    }
}
