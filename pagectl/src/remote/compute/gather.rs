//! Before a compute is replaced that is lost: what standbys have of its WAL, and the owner of its branch has not, is
//! brought to the owner. Commits may have waited for a standby alone.

use std::time::Duration;

use anyhow::bail;
use serde_json::Value;
use utils::lsn::Lsn;

use crate::remote::client::{Client, encoded};
use crate::remote::connection::Remote;
use crate::table::text;

/// How long a standby may take for a part of what it has.
const ASKED: Duration = Duration::from_secs(30);

/// Brings it there. Returns whether there was any.
pub(super) fn gather(remote: &Remote<'_>, branch: &Value) -> anyhow::Result<bool> {
    let servers = remote.client.each();
    let Some(writer) = branch["walreceiver"]["writer"]["id"].as_str().filter(|_| servers.len() > 1) else {
        return Ok(false);
    };
    let path = format!("/v1/tenant/{}/timeline/{}", text(branch, "tenant_id"), text(branch, "timeline_id"));
    let mut has_more = false;
    for server in servers {
        has_more |= gather_from(remote, &server.within(ASKED), &path, writer)?;
    }
    Ok(has_more)
}

/// What one server has, if it is a standby.
fn gather_from(remote: &Remote<'_>, server: &Client, path: &str, writer: &str) -> anyhow::Result<bool> {
    let begun: Lsn = text(&remote.client.get(path)?, "last_record_lsn").parse()?;
    let mut last = begun;
    loop {
        let from = last.page_start();
        let asked = format!("{path}/journal?writer={}&from={}", encoded(writer), encoded(&from.to_string()));
        let wal = match server.bytes("GET", &asked, None) {
            Ok(wal) => wal,
            Err(error) if error.to_string().ends_with("(404)") => return Ok(false),
            Err(error) => {
                tracing::warn!("what only this server has of the branch is left behind: {error:#}");
                return Ok(last > begun);
            }
        };
        if from + wal.len() as u64 <= last {
            return Ok(last > begun);
        }
        let taken = remote.client.put_bytes(&format!("{path}/journal?from={}", encoded(&from.to_string())), &wal)?;
        let now: Lsn = text(&taken, "last_record_lsn").parse()?;
        if now < last {
            bail!("the branch ended at {last}, and now ends at {now}");
        }
        if now == last {
            // What is left is the beginning of a record.
            return Ok(last > begun);
        }
        last = now;
    }
}
