//! Limits on requests: duration, retries, concurrency.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;

use super::RequestClass;

/// Limits on all requests to a bucket.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// How long one attempt may take, plus one second for each MiB that it transfers.
    pub attempt_timeout: Duration,
    /// How long a failing request is retried.
    pub retry_deadline: Duration,
    /// Maximum number of attempts of a request.
    pub max_attempts: u32,
    /// The first pause between two attempts; it doubles with each further attempt, up to fifty times this.
    pub first_pause: Duration,
    /// Maximum number of concurrent uploads.
    pub upload_concurrency: NonZeroUsize,
    /// Maximum number of concurrent reads.
    pub read_concurrency: NonZeroUsize,
    /// Files larger than this are uploaded in parts of this size.
    pub part_size: u64,
}

impl Default for RemoteOptions {
    fn default() -> Self {
        Self {
            attempt_timeout: Duration::from_secs(15),
            retry_deadline: Duration::from_secs(60),
            max_attempts: 50,
            first_pause: Duration::from_millis(100),
            upload_concurrency: NonZeroUsize::MIN.saturating_add(7),
            read_concurrency: NonZeroUsize::MIN.saturating_add(63),
            part_size: 16 << 20,
        }
    }
}

/// Concurrency limits per class of requests, so that no class delays another.
pub(super) struct Budgets {
    read: Arc<Semaphore>,
    prefetch: Arc<Semaphore>,
    upload: Arc<Semaphore>,
    tail: Arc<Semaphore>,
    control: Arc<Semaphore>,
    delete: Arc<Semaphore>,
    scrub: Arc<Semaphore>,
}

impl Budgets {
    pub(super) fn new(options: &RemoteOptions) -> Self {
        let reads = options.read_concurrency.get();
        let of = |most| Arc::new(Semaphore::new(most));
        Self {
            read: of(reads),
            prefetch: of(reads.div_ceil(4)),
            upload: of(options.upload_concurrency.get()),
            tail: of(options.upload_concurrency.get()),
            control: of(reads),
            delete: of(4),
            scrub: of(4),
        }
    }

    pub(super) fn of(&self, class: RequestClass) -> &Arc<Semaphore> {
        match class {
            RequestClass::Read => &self.read,
            RequestClass::Prefetch => &self.prefetch,
            RequestClass::Upload => &self.upload,
            RequestClass::Tail => &self.tail,
            RequestClass::Control => &self.control,
            RequestClass::Delete => &self.delete,
            RequestClass::Scrub => &self.scrub,
        }
    }
}
