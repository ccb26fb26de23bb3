//! One lock per key, which exists as long as somebody uses it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// Locks by key: holding one does not block others.
#[derive(Debug)]
pub struct KeyedLock<K> {
    locks: Mutex<HashMap<K, Arc<AsyncMutex<()>>>>,
}

impl<K> Default for KeyedLock<K> {
    fn default() -> Self {
        Self { locks: Mutex::default() }
    }
}

impl<K: Eq + Hash> KeyedLock<K> {
    /// Waits for the lock of `key`. Waiters are served in order of arrival.
    pub async fn lock(&self, key: K) -> OwnedMutexGuard<()> {
        let lock = {
            let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
            // Drops locks that nobody holds or waits for.
            locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            Arc::clone(locks.entry(key).or_default())
        };
        lock.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn one_key_keeps_nobody_from_another() {
        let locks = KeyedLock::default();
        let one = locks.lock(1).await;
        let two = locks.lock(2).await;
        assert!(tokio::time::timeout(Duration::from_millis(20), locks.lock(1)).await.is_err());
        drop(one);
        let one = locks.lock(1).await;
        drop((one, two));
        drop(locks.lock(3).await);
        assert_eq!(locks.locks.lock().unwrap().len(), 1);
    }
}
