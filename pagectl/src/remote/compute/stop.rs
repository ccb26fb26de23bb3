//! `pagectl compute stop`.

use std::time::Duration;

use anyhow::bail;
use compute::lifecycle::{self, Computes, Stopped};
use serde_json::json;
use utils::lsn::Lsn;

use super::control::Registry;
use crate::output;
use crate::remote::connection::Remote;

/// Stops a compute and prints where its branch ends.
pub(super) fn run(remote: &Remote<'_>, computes: &Computes, name: &str, timeout: Duration) -> anyhow::Result<()> {
    let end = stopped(remote, computes, name, timeout)?;
    let summary = match end {
        Some(end) => format!("{name} is stopped; its branch ends at LSN {end}"),
        None => format!("{name} is stopped"),
    };
    output::finish(remote.common.json, &json!({ "end_lsn": end }), summary);
    Ok(())
}

/// Stops a compute. Returns where its branch ends, if it was the branch's writer.
pub(super) fn stopped(
    remote: &Remote<'_>,
    computes: &Computes,
    name: &str,
    timeout: Duration,
) -> anyhow::Result<Option<Lsn>> {
    // An unresponsive page server must not keep the compute from stopping in time.
    let registry = Registry::by(remote.client.within((timeout / 8).max(Duration::from_secs(1))));
    match lifecycle::stop(&computes.layout(name)?, timeout, &registry)? {
        Stopped::Released(end) => Ok(Some(end)),
        Stopped::ReadOnly => Ok(None),
        Stopped::Kept(reason) => bail!(
            "{name} is stopped, but {reason}. Nothing is lost: start it again, and stop it when the page server follows"
        ),
        Stopped::Killed(reason) => bail!(
            "{name} was killed: {reason}. What was committed is in its WAL here, and its next start recovers it; if \
             the address of the page server is another one now: pagectl compute start {name} --page-service CONNSTR"
        ),
    }
}
