//! Keeps the boot LSN readable.

use std::time::Duration;

use pageserver_client::PageServer;
use tokio::sync::watch;
use utils::shard::TenantShardId;

use crate::source::servers::Servers;
use crate::source::timeline_at::TimelineAt;

/// Retry interval while the pageserver does not answer or refuses.
const AGAIN: Duration = Duration::from_secs(5);
const PERIOD_MAX: Duration = Duration::from_secs(300);
/// With several servers the owner may change, and the new one has to know of the lease before the old one would end.
const PERIOD_BETWEEN: Duration = Duration::from_secs(60);
/// How long one of several servers may take.
const ANSWER: Duration = Duration::from_secs(10);

/// Renews the lease well before it ends, at whichever server is the owner, until the source is gone. `go_over` has
/// another server asked for pages, too: from which number, and to which. A standby that is asked for pages stays so.
pub(super) async fn keep(mut servers: watch::Receiver<Servers>, at: TimelineAt, go_over: impl Fn(usize, usize)) {
    let mut last_error = String::new();
    loop {
        let asked = servers.borrow_and_update().clone();
        let pause = match renew_at_any(&asked, &at).await {
            Ok((left, number)) => {
                if !asked.is_at_standby() {
                    go_over(asked.at(), number);
                }
                last_error.clear();
                let longest = if asked.count() > 1 { PERIOD_BETWEEN } else { PERIOD_MAX };
                (left / 3).clamp(Duration::from_millis(100), longest)
            }
            Err(error) => {
                if error != last_error {
                    tracing::warn!("the lease of LSN {} is not renewed, trying again: {error}", at.lsn);
                }
                last_error = error;
                AGAIN
            }
        };
        if let Ok(Err(_)) = env::clock::timeout(pause, servers.changed()).await {
            return;
        }
    }
}

/// Renews the lease at the server that is asked for pages, or else at another one. Returns how long it lasts, and at
/// which.
async fn renew_at_any(servers: &Servers, at: &TimelineAt) -> Result<(Duration, usize), String> {
    let mut failed = String::new();
    for (number, server) in servers.in_turn() {
        let renewed = if servers.count() > 1 {
            let late = |_| Err(format!("no answer within {ANSWER:?}"));
            env::clock::timeout(ANSWER, renew(server, at)).await.unwrap_or_else(late)
        } else {
            renew(server, at).await
        };
        match renewed {
            Ok(left) => return Ok((left, number)),
            Err(error) if failed.is_empty() => failed = error,
            Err(error) => failed = format!("{failed}; {error}"),
        }
    }
    Err(failed)
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
