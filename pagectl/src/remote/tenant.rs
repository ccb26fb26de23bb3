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
        rows.push(vec![text(tenant, "id"), state, timelines, size]);
    }
    let shown = table(&["TENANT", "STATE", "TIMELINES", "SIZE"], &rows);
    output::finish(remote.common.json, &json!({ "tenants": tenants }), shown);
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
