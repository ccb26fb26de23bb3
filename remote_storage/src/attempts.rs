//! Attempts, retries and deadlines of all requests.
//!
//! A request counts against its class's budget only while an attempt is under way, so one that waits for its next
//! attempt does not hold up others. Dropping the future of a request cancels it.

use std::time::Duration;

use super::Inner;
use super::failed::{Failed, Kind};
use super::request::Request;
use errors::StorageError;
use metrics::{METRICS, StoreFault, seconds_since};

/// Bytes per second of a slow link.
const SLOW_LINK: u64 = 1 << 20;
/// The number of bytes beyond which the limit of an attempt does not grow.
const MAX_ALLOWANCE: u64 = 256 << 20;

impl Inner {
    /// How long one attempt may take.
    fn attempt_limit(&self, request: Request<'_>) -> Duration {
        self.time_for(request.bytes)
    }

    /// How long a response of `bytes` bytes may take.
    pub(super) fn time_for(&self, bytes: u64) -> Duration {
        self.options.attempt_timeout + Duration::from_millis(bytes.min(MAX_ALLOWANCE) * 1000 / SLOW_LINK)
    }

    /// Makes attempts until one succeeds, one fails permanently, or time runs out.
    pub(super) async fn run<T, F, Fut>(&self, request: Request<'_>, attempt: F) -> Result<T, StorageError>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, Failed>>,
    {
        self.run_to_failure(request, attempt).await.map_err(|failed| self.error(request, failed))
    }

    /// As [`Inner::run`], but returns the more detailed [`Failed`].
    pub(super) async fn run_to_failure<T, F, Fut>(&self, request: Request<'_>, attempt: F) -> Result<T, Failed>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, Failed>>,
    {
        // Attempts begin before the deadline; the last one may use its full limit.
        let limit = self.options.retry_deadline + self.attempt_limit(request);
        let mut last = None;
        match env::clock::timeout(limit, self.attempts(request, attempt, &mut last)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(last.unwrap_or_else(|| Failed::timeout(limit))),
        }
    }

    async fn attempts<T, F, Fut>(
        &self,
        request: Request<'_>,
        attempt: F,
        last: &mut Option<Failed>,
    ) -> Result<T, Failed>
    where
        F: Fn() -> Fut,
        Fut: Future<Output = Result<T, Failed>>,
    {
        let started = env::clock::now();
        let mut attempts = 0;
        loop {
            let outcome = self.attempt(request, attempt()).await;
            attempts += 1;
            match outcome {
                Err(failed) if !failed.is_final(attempts, &self.options) => {
                    let pause = failed.pause(attempts, &self.options);
                    if env::clock::now().saturating_duration_since(started) + pause >= self.options.retry_deadline {
                        return Err(failed);
                    }
                    tracing::debug!(?pause, attempts, "{} {}: {}", request.operation, request.path, failed.reason);
                    *last = Some(failed);
                    env::clock::sleep(pause).await;
                }
                outcome => return outcome,
            }
        }
    }

    /// Makes one attempt, waiting for its turn.
    pub(super) async fn attempt<T>(
        &self,
        request: Request<'_>,
        attempt: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let budget = self.budgets.of(request.class).acquire().await;
        let _turn = budget.map_err(|_| Failed::new(Kind::Never, "the store was closed"))?;
        self.timed(request, attempt).await
    }

    /// Makes one attempt of a request that has its turn.
    pub(super) async fn timed<T>(
        &self,
        request: Request<'_>,
        attempt: impl Future<Output = Result<T, Failed>>,
    ) -> Result<T, Failed> {
        let limit = self.attempt_limit(request);
        let started = env::clock::now();
        METRICS.remote_storage_requests.of(request.class).inc();
        METRICS.remote_storage_cost_dollars.inc_by(self.prices.of(request.operation));
        let outcome = env::clock::timeout(limit, attempt).await.unwrap_or_else(|_| Err(Failed::timeout(limit)));
        METRICS.remote_storage_request_seconds.of(request.class).observe(seconds_since(started));
        match &outcome {
            Err(Failed { kind: Kind::Fault(fault), reason }) => {
                METRICS.remote_storage_failures.of(*fault).inc();
                if *fault != StoreFault::Malformed {
                    self.health.failed(&self.url, reason);
                }
            }
            _ => self.health.answered(&self.url),
        }
        outcome
    }

    pub(super) fn error(&self, request: Request<'_>, failed: Failed) -> StorageError {
        let object = self.name_of(request.path);
        if failed.kind == Kind::Never {
            return StorageError::Internal(format!("{} {object}: {}", request.operation, failed.reason));
        }
        let failure = failed.failure();
        StorageError::Remote { operation: request.operation, object, failure, reason: failed.reason }
    }
}
