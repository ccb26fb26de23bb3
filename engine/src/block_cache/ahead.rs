//! What is fetched ahead of sequential reads, of all files: one account of memory, in which what nobody reads towards
//! any more gives way to others.

use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;

use super::account::{Account, Lease};

/// Something that was fetched ahead, as whoever fetched it knows it.
pub(crate) trait FetchedAhead: Send + Sync + 'static {
    /// Whether it is gone, and has no memory any more.
    fn is_gone(&self) -> bool;
    /// Whether it is here, and nobody reads towards it any more.
    fn is_idle(&self, now: Instant) -> bool;
    /// Lets go of it.
    fn give_up(&self);
}

/// See the module's documentation.
pub(super) struct Ahead {
    pub(super) account: Arc<Account>,
    fetched: Mutex<Vec<Box<dyn FetchedAhead>>>,
}

impl Ahead {
    /// With so many bytes for all.
    pub(super) fn new(bytes: u64) -> Self {
        Self { account: Account::new(bytes), fetched: Mutex::default() }
    }

    /// Memory for `wanted` bytes; if not for all, for at least `worth` of them, or none.
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
