//! `pagectl branch delete` and `reset`: branches that go, with their computes of this machine.

use anyhow::{Context, bail};
use clap::Args;
use compute::lifecycle::{self, ComputeConfig, Computes, State};
use pageserver_api::shard::TenantShardId;
use serde_json::{Value, json};
use utils::lsn::Lsn;

use super::init;
use super::life::NewLife;
use crate::output;
use crate::remote::branches::{create, writer};
use crate::remote::compute::{Directory, Registry};
use crate::remote::connection::Remote;
use crate::remote::{moment, timeline};
use crate::table::text;

/// What becomes of the computes of a branch that goes.
#[derive(Debug, Args)]
pub(crate) struct ComputesOfIt {
    #[command(flatten)]
    directory: Directory,
    /// Even if a compute of this machine writes it now; those that run on it are ended, and what their clients are
    /// doing is lost.
    #[arg(long)]
    force: bool,
}

/// Deletes a branch.
pub(super) fn delete(remote: &Remote<'_>, wanted: &str, computes: &ComputesOfIt) -> anyhow::Result<()> {
    let branch = remote.branch_or_root(Some(wanted))?;
    let answer = remove(remote, &branch, wanted, computes)?;
    output::finish(remote.common.json, &answer, format!("branch {wanted} is deleted"));
    Ok(())
}

impl ComputesOfIt {
    /// Those of this machine.
    pub(super) fn computes(&self) -> Computes {
        self.directory.computes()
    }
}

/// Deletes a branch and creates it again under its name, with the SQL of its own that it had.
pub(super) fn reset(
    remote: &Remote<'_>,
    wanted: &str,
    to: Option<&str>,
    ttl: Option<String>,
    computes: &ComputesOfIt,
) -> anyhow::Result<Value> {
    let branch = remote.branch_or_root(Some(wanted))?;
    let mut noted = NewLife::of_former(&branch, ttl)?;
    noted.extend(init::own_sql(remote, &branch)?.map(|sql| ("init_sql".to_owned(), sql)));
    let Some(parent) = branch["ancestor_timeline_id"].as_str() else {
        bail!("{wanted} was not made of another branch: there is nothing that it could begin anew from");
    };
    let Some(name) = branch["name"].as_str() else { bail!("the branch {wanted} has no name to be found by again") };
    // Before anything goes: the moment must exist, and stay until the branch begins there.
    let ancestor = remote.branch_or_root(Some(parent))?;
    let lsn = moment::lsn_at(remote, &ancestor, to)?;
    let end: Lsn = text(&ancestor, "last_record_lsn").parse()?;
    if lsn > end {
        bail!("{wanted} stays as it is: LSN {lsn} is after the last record of {parent}, which ends at {end}");
    }
    let path = format!("/v1/tenant/{}/timeline/{parent}/lsn_lease", text(&branch, "tenant_id"));
    let leased = remote.client.call("POST", &path, Some(&json!({ "lsn": lsn })));
    leased.with_context(|| format!("{wanted} stays as it is"))?;
    remove(remote, &branch, wanted, computes)?;
    create(remote, name, Some(parent), Some(&lsn.to_string()), noted).with_context(|| {
        format!(
            "the branch {name} is deleted; create it again: pagectl branch create {name} --from {parent} --at {lsn}"
        )
    })
}

/// Destroys the computes of a branch, and deletes it.
fn remove(remote: &Remote<'_>, branch: &Value, wanted: &str, of_it: &ComputesOfIt) -> anyhow::Result<Value> {
    // The server refuses as well, but the computes would be gone then.
    if branch["protected"] == true {
        bail!("the branch {wanted} is protected: to change that, pagectl branch set {wanted} --unprotect");
    }
    if let Some(count @ 1..) = branch["children"].as_array().map(Vec::len) {
        bail!("the branch {wanted} has {count} branches: delete those first, or detach them");
    }
    end_computes(remote, branch, wanted, of_it)?;
    let (tenant, id): (TenantShardId, String) = (text(branch, "tenant_id").parse()?, text(branch, "timeline_id"));
    let answer = remote.client.call("DELETE", &format!("/v1/tenant/{tenant}/timeline/{id}"), None)?;
    timeline::tell_left_slots(remote, &answer);
    Ok(answer)
}

/// Destroys the computes of a branch that are on this machine.
pub(super) fn end_computes(
    remote: &Remote<'_>,
    branch: &Value,
    wanted: &str,
    of_it: &ComputesOfIt,
) -> anyhow::Result<()> {
    let computes = of_it.directory.computes();
    let id = text(branch, "timeline_id");
    let is_on_it = |compute: &ComputeConfig| compute.timeline.to_string() == id;
    let on_it: Vec<_> = computes.list()?.into_iter().filter_map(|(_, one)| one.ok()).filter(is_on_it).collect();
    let mut going = Vec::new();
    for compute in &on_it {
        let runs = matches!(State::of(compute, &computes.layout(&compute.name)?), State::Running(_));
        match (runs && !of_it.force, compute.read_only) {
            (true, false) => {
                bail!("the compute {} runs on the branch {wanted}: stop it first, or say --force", compute.name)
            }
            // Its clients are told that the branch is gone.
            (true, true) => {}
            (false, _) => going.push(compute),
        }
    }
    let is_here = |writer: &str| on_it.iter().any(|compute| writer == format!("compute {}", compute.name));
    if let Some(elsewhere) = writer(branch).filter(|writer| writer.starts_with("compute") && !is_here(writer)) {
        bail!("{elsewhere} writes the branch {wanted}: destroy it first");
    }
    for compute in going {
        let layout = computes.layout(&compute.name)?;
        match lifecycle::destroy(&layout, of_it.force, &Registry::of(remote)) {
            // A gateway ends what nobody uses, at any moment.
            Err(_) if !layout.config().exists() => {}
            done => done?,
        }
    }
    Ok(())
}
