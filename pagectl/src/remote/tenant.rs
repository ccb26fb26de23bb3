//! `pagectl tenant ...`.

use pageserver_api::shard::TenantShardId;
use serde_json::json;
use utils::id::TenantId;

use super::connection::Remote;
use super::timeline::tell_left_slots;
use crate::output;
use crate::table::{bytes, table, text};

/// Lists all tenants.
pub(super) fn list(remote: &Remote<'_>) -> anyhow::Result<()> {
    let tenants = remote.client.get("/v1/tenant")?;
    let mut rows = Vec::new();
    for tenant in tenants.as_array().into_iter().flatten() {
        let timelines = tenant["timelines"].as_array().map_or(0, Vec::len).to_string();
        let (state, size) = (text(&tenant["state"], "slug"), bytes(tenant, "current_physical_size"));
        let owner = &tenant["owner"];
        let of = match owner.is_null() {
            true => String::new(),
            false => {
                let (server, host) = (text(owner, "server"), text(owner, "host"));
                format!("{server} on {host}, lease: {}{}", lease(owner), receiving(tenant))
            }
        };
        rows.push(vec![text(tenant, "id"), state, timelines, size, of]);
    }
    let shown = table(&["TENANT", "STATE", "TIMELINES", "SIZE", "OWNER"], &rows);
    output::finish(remote.common.json, &json!({ "tenants": tenants }), shown);
    Ok(())
}

/// An owner's lease, as a standby sees it.
fn lease(owner: &serde_json::Value) -> String {
    let state = text(&owner["lease"], "slug");
    match owner["overdue_in_ms"].as_u64() {
        Some(left) => format!("{state}, overdue in {left} ms"),
        None => state,
    }
}

/// What a standby receives itself.
fn receiving(tenant: &serde_json::Value) -> String {
    let all = tenant["standby"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(lag) = all.iter().map(|timeline| timeline["lag_bytes"].as_u64().unwrap_or(0)).max() else {
        return String::new();
    };
    let is_following = |timeline: &&serde_json::Value| timeline["error"].is_null();
    let following = all.iter().filter(is_following).count();
    format!("; WAL of {following} of {} timelines comes, at most {lag} bytes behind", all.len())
}

/// Has the server follow the owner of a tenant, to take it over when that is gone.
pub(super) fn standby(remote: &Remote<'_>, id: TenantShardId) -> anyhow::Result<()> {
    remote.client.call("PUT", &format!("/v1/tenant/{id}/location_config"), Some(&json!({"mode": "Secondary"})))?;
    let summary =
        format!("the server is a standby of tenant {id}: pagectl tenant list tells what it sees of the owner");
    output::finish(remote.common.json, &json!({ "tenant_id": id }), summary);
    Ok(())
}

/// Creates a tenant.
pub(super) fn create(remote: &Remote<'_>, id: Option<TenantId>) -> anyhow::Result<()> {
    let id = id.unwrap_or_else(TenantId::generate);
    remote.client.call("PUT", &format!("/v1/tenant/{id}/location_config"), Some(&json!({"mode": "AttachedSingle"})))?;
    output::finish(remote.common.json, &json!({ "tenant_id": id }), format!("tenant {id}"));
    Ok(())
}

/// Deletes a tenant.
pub(super) fn delete(remote: &Remote<'_>, id: TenantShardId) -> anyhow::Result<()> {
    let answer = remote.client.call("DELETE", &format!("/v1/tenant/{id}"), None)?;
    tell_left_slots(remote, &answer);
    output::finish(remote.common.json, &answer, format!("tenant {id} is deleted"));
    Ok(())
}
