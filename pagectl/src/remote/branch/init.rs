//! SQL that runs on a branch before anybody uses it: given with a new branch, run, shown.

use std::io::Read;

use anyhow::{Context, bail};
use camino::Utf8Path;
use camino::Utf8PathBuf;
use clap::Args;
use compute::lifecycle::Computes;
use serde_json::{Value, json};

use crate::output;
use crate::remote::compute::init::{Here, Wish, ready};
use crate::remote::compute::{Directory, HostArgs};
use crate::remote::connection::Remote;
use crate::remote::init_state;
use crate::table::text;

/// SQL of one branch.
#[derive(Debug, Args)]
pub(crate) struct SqlArgs {
    /// SQL to run on it before anybody uses it, such as to mask data: in one transaction, as superuser, after what all
    /// branches of its parent have. Until it has succeeded, nobody gets in. - is standard input.
    #[arg(long, value_name = "FILE")]
    init_sql: Option<Utf8PathBuf>,
    /// The database that it runs in.
    #[arg(long, requires = "init_sql", default_value = "postgres", value_name = "NAME")]
    init_db: String,
}

/// How SQL is run, if there is any to run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Do not run SQL now: the branch stays closed until the gateway is asked for it, or `branch init` runs it.
    #[arg(long)]
    init_later: bool,
    #[command(flatten)]
    host: HostArgs,
}

/// The same, and where.
#[derive(Debug, Args)]
pub(crate) struct HereArgs {
    #[command(flatten)]
    directory: Directory,
    #[command(flatten)]
    run: RunArgs,
}

impl SqlArgs {
    /// The member of a request.
    pub(super) fn read(&self) -> anyhow::Result<Option<Value>> {
        self.init_sql.as_deref().map(|file| sql_of(file, &self.init_db)).transpose()
    }
}

/// SQL in a file, as a member of a request.
pub(super) fn sql_of(file: &Utf8Path, database: &str) -> anyhow::Result<Value> {
    let mut sql = String::new();
    let read = match file.as_str() {
        "-" => std::io::stdin().read_to_string(&mut sql),
        _ => std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut sql)),
    };
    read.with_context(|| format!("cannot read {file}"))?;
    Ok(json!({ "sql": sql, "database": database }))
}

/// The SQL of a branch's own, as a member of a request.
pub(super) fn own_sql(remote: &Remote<'_>, branch: &Value) -> anyhow::Result<Option<Value>> {
    if branch["init"].is_null() {
        return Ok(None);
    }
    let (tenant, id) = (text(branch, "tenant_id"), text(branch, "timeline_id"));
    let answer = remote.client.get(&format!("/v1/tenant/{tenant}/timeline/{id}/init?sql=true"))?;
    let own = answer["sql"].as_array().into_iter().flatten().find(|script| script["standing"] != true);
    Ok(own.map(|script| json!({ "sql": script["sql"], "database": script["database"] })))
}

impl RunArgs {
    /// Runs what is to run on a new branch, unless that is for later.
    pub(super) fn settle(&self, remote: &Remote<'_>, computes: &Computes, branch: &Value) -> anyhow::Result<Value> {
        if self.init_later {
            return Ok(branch.clone());
        }
        ready(Here { remote, computes, host: &self.host }, branch, &Wish::default())
    }
}

impl HereArgs {
    /// Runs what is to run on a new branch, unless that is for later.
    pub(super) fn settle(&self, remote: &Remote<'_>, branch: &Value) -> anyhow::Result<Value> {
        self.run.settle(remote, &self.directory.computes(), branch)
    }
}

/// Runs `pagectl branch init`.
pub(super) fn run(
    remote: &Remote<'_>,
    wanted: &str,
    retry: bool,
    sql: &SqlArgs,
    here: &HereArgs,
) -> anyhow::Result<()> {
    let branch = remote.branch_or_root(Some(wanted))?;
    let sql = sql.read()?;
    if branch["init"].is_null() {
        bail!("the branch {wanted} has no SQL to run: anybody may use it");
    }
    if sql.is_some() && !retry && branch["init"]["state"] == "failed" {
        bail!("the SQL of {wanted} has failed: say --retry to run another one");
    }
    let computes = here.directory.computes();
    let wish = Wish { retry, sql, patience: None };
    let branch = ready(Here { remote, computes: &computes, host: &here.run.host }, &branch, &wish)?;
    let summary = format!("branch {wanted} is open (timeline {}){}", text(&branch, "timeline_id"), remark(&branch));
    output::finish(remote.common.json, &branch, summary);
    Ok(())
}

/// What is to be known of a branch that has SQL to run.
pub(super) fn remark(branch: &Value) -> String {
    match (init_state::closed(branch), branch["init"]["lsn"].as_str()) {
        (Some(_), _) => {
            format!("; closed until its SQL has run: {}, or the first client of a gateway", init_state::hint(branch))
        }
        (None, Some(lsn)) if !branch["init"]["sql"].as_array().is_none_or(Vec::is_empty) => {
            format!("; its SQL was done at LSN {lsn}")
        }
        _ => String::new(),
    }
}

/// Runs `pagectl branch show`.
pub(super) fn show(remote: &Remote<'_>, wanted: &str) -> anyhow::Result<()> {
    let branch = remote.branch_or_root(Some(wanted))?;
    let members = branch.as_object().into_iter().flatten();
    let shown = members.filter(|(_, value)| !value.is_null()).map(|(name, value)| match value.as_str() {
        Some(text) => format!("{name}: {text}"),
        None => format!("{name}: {value}"),
    });
    let closed = init_state::closed(&branch).map(|why| format!("{why}. {}", init_state::hint(&branch)));
    let lines: Vec<String> = closed.into_iter().chain(shown).collect();
    output::finish(remote.common.json, &branch, lines.join("\n"));
    Ok(())
}
