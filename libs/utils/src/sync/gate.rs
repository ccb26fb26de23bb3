//! A gate: work enters it that must end before the gate's owner may go away.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Semaphore;

const UNITS: u32 = u32::MAX >> 3;

/// Counts work in progress; [`Gate::close`] refuses new entries and waits for the existing ones.
#[derive(Debug)]
pub struct Gate {
    units: Arc<Semaphore>,
    closing: AtomicBool,
}

/// Keeps its gate from closing until it is dropped.
#[derive(Debug)]
pub struct GateGuard {
    _permit: tokio::sync::OwnedSemaphorePermit,
}

/// The gate is closed or closing: the caller should stop.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone, Copy)]
#[error("gate is closed: shutting down")]
pub struct GateClosed;

impl Default for Gate {
    fn default() -> Self {
        Self { units: Arc::new(Semaphore::new(UNITS as usize)), closing: AtomicBool::new(false) }
    }
}

impl Gate {
    /// Enters the gate. Fails once [`Gate::close`] has begun.
    pub fn enter(&self) -> Result<GateGuard, GateClosed> {
        if self.closing.load(Ordering::Acquire) {
            return Err(GateClosed);
        }
        let permit = Arc::clone(&self.units).try_acquire_owned().map_err(|_| GateClosed)?;
        Ok(GateGuard { _permit: permit })
    }

    /// Refuses new entries and waits until every guard is dropped.
    pub async fn close(&self) {
        self.closing.store(true, Ordering::Release);
        if let Ok(permits) = self.units.acquire_many(UNITS).await {
            permits.forget();
        }
        self.units.close();
    }

    /// Whether [`Gate::close`] has begun.
    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn close_waits_for_guards_and_refuses_new_ones() {
        let gate = Arc::new(Gate::default());
        let guard = gate.enter().expect("open gate");
        let closer = tokio::spawn({
            let gate = Arc::clone(&gate);
            async move { gate.close().await }
        });
        tokio::task::yield_now().await;
        assert!(!closer.is_finished());
        while !gate.is_closing() {
            tokio::task::yield_now().await;
        }
        assert_eq!(gate.enter().err(), Some(GateClosed));
        drop(guard);
        closer.await.expect("close returns");
        assert_eq!(gate.enter().err(), Some(GateClosed));
    }
}
