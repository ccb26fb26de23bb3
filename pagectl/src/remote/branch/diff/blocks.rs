//! Which relations differ, and in how many blocks, as the server compares them.

use super::sides::Side;
use crate::output;
use crate::remote::connection::Remote;
use crate::table::{table, text};

/// Compares two moments of branches.
pub(super) fn run(remote: &Remote<'_>, here: &Side, there: &Side) -> anyhow::Result<()> {
    let (tenant, timeline) = (text(&here.branch, "tenant_id"), text(&here.branch, "timeline_id"));
    let other = text(&there.branch, "timeline_id");
    let path = format!("/v1/tenant/{tenant}/timeline/{timeline}/diff");
    let answer = remote.client.get(&format!("{path}?lsn={}&other={other}&other_lsn={}", here.lsn, there.lsn))?;
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
