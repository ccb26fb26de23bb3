//! Follows a timeline, session after session.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::follower::Follower;
use super::session;
use crate::walreceiver::backoff::Backoff;
use crate::walreceiver::failure::{Failure, Remedy, WRONG_PERIOD};
use crate::walreceiver::status::WalReceiverState;

/// One that runs.
pub(super) struct Running {
    pub(super) follower: Arc<Follower>,
    pub(super) task: JoinHandle<()>,
}

impl Running {
    pub(super) fn begin(follower: Follower) -> Self {
        let follower = Arc::new(follower);
        let panicked = Arc::clone(&follower);
        let task = env::spawn::watched("WAL of another server's timeline", run(follower.clone()), move |reason| {
            panicked.failed(WalReceiverState::Failed, reason);
        });
        Self { follower, task }
    }
}

/// Runs one session after another.
async fn run(follower: Arc<Follower>) {
    let (mut backoff, mut last_error, mut position) = (Backoff::new(), String::new(), None);
    let mut begun = false;
    while !follower.cancel.is_cancelled() {
        let before = follower.lane.synced();
        let attempt = async {
            if !begun {
                follower.begin().await?;
            }
            begun = true;
            session::run(&follower, &mut position).await
        };
        let ended: Result<(), Failure> = attempt.await;
        if follower.lane.synced() > before {
            backoff.reset();
            last_error.clear();
        }
        let delay = match ended {
            Ok(()) => Duration::ZERO,
            Err(failure) => after(&follower, &failure, &mut backoff, &mut last_error),
        };
        tokio::select! {
            () = env::clock::sleep(delay) => {}
            () = follower.cancel.cancelled() => {}
        }
    }
    follower.progress.lock().state = WalReceiverState::Stopped;
}

/// When to try again. A repeated error is logged only once.
fn after(follower: &Follower, failure: &Failure, backoff: &mut Backoff, last_error: &mut String) -> Duration {
    let (error, remedy) = (failure.to_string(), failure.remedy());
    if error != *last_error && !follower.cancel.is_cancelled() {
        let (tenant, timeline) = follower.id;
        tracing::info!(%tenant, %timeline, "this standby receives no WAL of it, and will try again: {error}");
        last_error.clone_from(&error);
    }
    let is_passing = remedy == Remedy::Retry;
    follower.failed(if is_passing { WalReceiverState::Retrying } else { WalReceiverState::Failed }, error);
    if is_passing { backoff.delay() } else { WRONG_PERIOD }
}
