//! Read-ahead of all files: one memory account, in which blocks that nobody reads towards any more give way to
//! others.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::account::{Account, Lease};

/// A read-ahead, as seen by whoever fetched it.
pub(crate) trait FetchedAhead: Send + Sync + 'static {
    /// Whether it is gone and no longer holds memory.
    fn is_gone(&self) -> bool;
    /// Whether it has arrived and nobody reads towards it any more.
    fn is_idle(&self, now: Instant) -> bool;
    /// Releases it.
    fn give_up(&self);
}

/// See the module's documentation.
pub(super) struct Ahead {
    pub(super) account: Arc<Account>,
    fetched: Mutex<Vec<Box<dyn FetchedAhead>>>,
}

impl Ahead {
    /// A pool of `bytes` for all read-ahead.
    pub(super) fn new(bytes: u64) -> Self {
        Self { account: Account::new(bytes), fetched: Mutex::default() }
    }

    /// Takes memory for `wanted` bytes; if that much is not available, at least `worth`, otherwise `None`.
    pub(super) fn take(&self, wanted: u64, worth: u64) -> Option<Lease> {
        let now = env::clock::now();
        let mut fetched = self.fetched.lock();
        fetched.retain(|one| !one.is_gone());
        loop {
            if let Some(lease) = self.account.try_take(wanted) {
                return Some(lease);
            }
            let Some(idle) = fetched.iter().position(|one| one.is_idle(now)) else {
                return Some(self.account.try_take_some(wanted)).filter(|some| some.bytes() >= worth);
            };
            fetched.remove(idle).give_up();
        }
    }

    pub(super) fn note(&self, fetched: impl FetchedAhead) {
        self.fetched.lock().push(Box::new(fetched));
    }
}
