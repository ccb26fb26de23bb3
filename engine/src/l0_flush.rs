//! Limits how many frozen layers are written to disk at once.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::sync::{Semaphore, SemaphorePermit};

use errors::StorageError;

/// How frozen layers get to disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum L0FlushConfig {
    /// Straight from the frozen layer to the layer file, at most this many layers at a time.
    Direct {
        /// Layers written at a time.
        max_concurrency: NonZeroUsize,
    },
}

/// The process-wide limit.
#[derive(Clone, Debug)]
pub struct L0FlushGlobalState(Arc<Inner>);

/// What a flush needs of the limit.
#[derive(Debug)]
pub enum Inner {
    /// See [`L0FlushConfig::Direct`].
    Direct {
        /// One permit for each layer that may be written at a time.
        semaphore: Semaphore,
    },
}

impl L0FlushGlobalState {
    /// A limit as configured.
    pub fn new(config: L0FlushConfig) -> Self {
        let L0FlushConfig::Direct { max_concurrency } = config;
        Self(Arc::new(Inner::Direct { semaphore: Semaphore::new(max_concurrency.get()) }))
    }

    /// What a flush is given.
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
