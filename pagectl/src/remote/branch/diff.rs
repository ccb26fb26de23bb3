//! `pagectl branch diff`.

use anyhow::bail;
use serde_json::Value;
use utils::lsn::Lsn;

use crate::output;
use crate::remote::connection::Remote;
use crate::remote::moment::lsn_at;
use crate::table::{table, text};

/// Compares two branches, or one branch at two LSNs.
pub(super) fn run(
    remote: &Remote<'_>,
    branch: &str,
    other: Option<&str>,
    at: Option<&str>,
    other_at: Option<&str>,
) -> anyhow::Result<()> {
    let here = remote.branch_or_root(Some(branch))?;
    let lsn = lsn_at(remote, &here, at)?;
    let (there, other_lsn) = match other {
        Some(other) => {
            let there = remote.branch_or_root(Some(other))?;
            let lsn = lsn_at(remote, &there, other_at)?;
            (text(&there, "timeline_id"), lsn)
        }
        None => before(remote, &here, other_at)?,
    };
    let (tenant, timeline) = (text(&here, "tenant_id"), text(&here, "timeline_id"));
    let path = format!("/v1/tenant/{tenant}/timeline/{timeline}/diff");
    let answer = remote.client.get(&format!("{path}?lsn={lsn}&other={there}&other_lsn={other_lsn}"))?;
    let relations = answer["relations"].as_array().map(Vec::as_slice).unwrap_or_default();
    let members = ["rel", "blocks_here", "blocks_there", "blocks_differing"];
    let rows: Vec<Vec<String>> = relations.iter().map(|one| members.map(|member| text(one, member)).to_vec()).collect();
    let blocks: u64 = relations.iter().filter_map(|one| one["blocks_differing"].as_u64()).sum();
    let lines = table(&["RELATION", "BLOCKS HERE", "THERE", "DIFFERENT"], &rows);
    let summary = format!(
        "{blocks} blocks of {} relations differ; the same up to LSN {}",
        rows.len(),
        text(&answer, "common_lsn")
    );
    output::finish(remote.common.json, &answer, format!("{lines}\n{summary}"));
    Ok(())
}

/// What to compare with by default: the ancestor at the branch point, or with `other_at` the branch itself at that
/// time.
fn before(remote: &Remote<'_>, branch: &Value, other_at: Option<&str>) -> anyhow::Result<(String, Lsn)> {
    if other_at.is_some() {
        return Ok((text(branch, "timeline_id"), lsn_at(remote, branch, other_at)?));
    }
    match (branch["ancestor_timeline_id"].as_str(), text(branch, "ancestor_lsn").parse()) {
        (Some(ancestor), Ok(lsn)) => Ok((ancestor.to_owned(), lsn)),
        _ => bail!("it continues no other branch: say with what to compare it, or with --other-at when"),
    }
}
