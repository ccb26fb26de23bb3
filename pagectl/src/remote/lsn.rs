//! `pagectl checkpoint`, `lease` and `lsn-at`.

use serde_json::json;
use utils::lsn::Lsn;

use super::client::encoded;
use super::connection::Remote;
use crate::output;
use crate::table::text;

/// Makes everything received so far durable.
pub(super) fn checkpoint(remote: &Remote<'_>) -> anyhow::Result<()> {
    let answer = remote.client.call("PUT", &format!("{}/checkpoint", remote.base()?), None)?;
    let summary = format!("on disk up to LSN {}", text(&answer, "disk_consistent_lsn"));
    output::finish(remote.common.json, &answer, summary);
    Ok(())
}

/// Takes a lease.
pub(super) fn lease(remote: &Remote<'_>, lsn: Lsn) -> anyhow::Result<()> {
    let path = format!("{}/lsn_lease", remote.base()?);
    let answer = remote.client.call("POST", &path, Some(&json!({ "lsn": lsn })))?;
    let summary = format!("LSN {lsn} stays readable until {}", text(&answer, "valid_until"));
    output::finish(remote.common.json, &answer, summary);
    Ok(())
}

/// Finds the LSN for a time.
pub(super) fn at(remote: &Remote<'_>, moment: &str, lease: bool) -> anyhow::Result<()> {
    let path = format!("{}/get_lsn_by_timestamp?timestamp={}&with_lease={lease}", remote.base()?, encoded(moment));
    let answer = remote.client.get(&path)?;
    let lsn = text(&answer, "lsn");
    let mut summary = match answer["kind"].as_str() {
        Some("present") => format!("LSN {lsn}"),
        Some("future") => format!("LSN {lsn}, the last one: no commit is after {moment}"),
        Some("past") => format!("LSN {lsn}, the first readable one: all commits are after {moment}"),
        _ => format!("LSN {lsn}, the last one: no commit is known"),
    };
    if let Some(until) = answer["valid_until"].as_str() {
        summary.push_str(&format!("; leased until {until}"));
    }
    output::finish(remote.common.json, &answer, summary);
    Ok(())
}
