//! Keeps the boot LSN readable.

use std::time::Duration;

use pageserver_client::PageServer;
use tokio::sync::watch;
use utils::shard::TenantShardId;

use crate::source::timeline_at::TimelineAt;

/// Retry interval while the pageserver does not answer or refuses.
const AGAIN: Duration = Duration::from_secs(5);
const PERIOD_MAX: Duration = Duration::from_secs(300);

/// Renews the lease well before it ends, at whichever server the source reads from, until the source is gone.
pub(super) async fn keep(mut server: watch::Receiver<PageServer>, at: TimelineAt) {
    let mut last_error = String::new();
    loop {
        let asked = server.borrow_and_update().clone();
        let pause = match renew(&asked, &at).await {
            Ok(left) => {
                last_error.clear();
                (left / 3).clamp(Duration::from_millis(100), PERIOD_MAX)
            }
            Err(error) => {
                if error != last_error {
                    tracing::warn!("the lease of LSN {} is not renewed, trying again: {error}", at.lsn);
                }
                last_error = error;
                AGAIN
            }
        };
        if let Ok(Err(_)) = env::clock::timeout(pause, server.changed()).await {
            return;
        }
    }
}

/// Renews the lease; returns how long it lasts from now on.
async fn renew(server: &PageServer, at: &TimelineAt) -> Result<Duration, String> {
    let leased = server.lease_lsn(TenantShardId::unsharded(at.tenant), at.timeline, at.lsn).await;
    match leased {
        Ok(Some(until)) => Ok(until.duration_since(env::clock::system_now()).unwrap_or_default()),
        Ok(None) => Err("the page server refuses it: the LSN can no longer be read".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
