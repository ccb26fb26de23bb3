//! Keeps the boot LSN readable.

use std::sync::Weak;
use std::time::Duration;

use utils::shard::TenantShardId;

use super::Inner;

/// While the page server does not answer, or refuses, it is asked this often.
const AGAIN: Duration = Duration::from_secs(5);
const PERIOD_MAX: Duration = Duration::from_secs(300);

/// Renews the lease well before it ends, until the source is gone.
pub(super) async fn keep(source: Weak<Inner>) {
    let mut last_error = String::new();
    loop {
        let Some(inner) = source.upgrade() else { return };
        let mut moved = inner.server.subscribe();
        let pause = match renew(&inner).await {
            Ok(left) => {
                last_error.clear();
                (left / 3).clamp(Duration::from_millis(100), PERIOD_MAX)
            }
            Err(error) => {
                if error != last_error {
                    tracing::warn!("the lease of LSN {} is not renewed, trying again: {error}", inner.at.lsn);
                }
                last_error = error;
                AGAIN
            }
        };
        drop(inner);
        // It fails at once when the source is gone.
        let _ = env::clock::timeout(pause, moved.changed()).await;
    }
}

/// How long the lease lasts from now on.
async fn renew(inner: &Inner) -> Result<Duration, String> {
    let at = &inner.at;
    let leased = inner.server().lease_lsn(TenantShardId::unsharded(at.tenant), at.timeline, at.lsn).await;
    match leased {
        Ok(Some(until)) => Ok(until.duration_since(env::clock::system_now()).unwrap_or_default()),
        Ok(None) => Err("the page server refuses it: the LSN can no longer be read".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
