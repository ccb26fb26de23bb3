//! Who is connected to a compute.

use std::time::Duration;

use super::config::ComputeConfig;
use super::{LifecycleError, Result, server};
use crate::layout::Layout;

/// Clients and followers of WAL, but not the pageserver, which names itself, and not who asks.
const GUESTS: &str = "SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender') AND \
                      pid <> pg_backend_pid() AND application_name !~ '^pageserver(_|$)'";

/// Number of clients that are connected to a running compute.
///
/// # Errors
/// It has not said so within `limit`.
pub fn guests(layout: &Layout, limit: Duration) -> Result<u64> {
    let compute = ComputeConfig::load(layout)?;
    let asked = async {
        let mut client = server::connect(&compute, layout).await?;
        let sets = client.simple_query(GUESTS).await.map_err(|error| error.to_string())?;
        client.close().await;
        let row = sets.first().and_then(|set| set.rows.first());
        let count = row.and_then(|row| row.first()?.as_deref().and_then(|text| std::str::from_utf8(text).ok()));
        count.and_then(|text| text.parse().ok()).ok_or_else(|| "it does not tell who is connected".to_owned())
    };
    let late = |_| Err(format!("it does not answer within {limit:?}"));
    let told = server::runtime()?.block_on(async { env::clock::timeout(limit, asked).await.unwrap_or_else(late) });
    told.map_err(|reason| LifecycleError::Server(format!("{}: {reason}", compute.name)))
}
