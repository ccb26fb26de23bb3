//! Limits how many frozen layers are flushed concurrently.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use errors::StorageError;

/// How frozen layers are written to disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L0FlushConfig {
    /// Directly from the frozen layer to the layer file.
    Direct {
        /// Maximum number of layers written at a time.
        max_concurrency: NonZeroUsize,
    },
}

/// The process-wide limit.
#[derive(Clone, Debug)]
pub struct L0FlushGlobalState(Arc<Inner>);

/// The part of the limit that a flush uses.
#[derive(Debug)]
pub enum Inner {
    /// See [`L0FlushConfig::Direct`].
    Direct {
        /// One permit per layer that may be written concurrently.
        semaphore: Semaphore,
    },
}

impl L0FlushGlobalState {
    /// A limit as configured.
    pub fn new(config: L0FlushConfig) -> Self {
        let L0FlushConfig::Direct { max_concurrency } = config;
        Self(Arc::new(Inner::Direct { semaphore: Semaphore::new(max_concurrency.get()) }))
    }

    /// What a flush acquires its permit from.
    pub fn inner(&self) -> &Arc<Inner> {
        &self.0
    }
}

impl Inner {
    /// Waits for a turn; the permit is held until the layer is durable.
    pub(crate) async fn acquire(&self) -> Result<SemaphorePermit<'_>, StorageError> {
        let Inner::Direct { semaphore } = self;
        semaphore.acquire().await.map_err(|_| StorageError::Shutdown)
    }
}
