//! `pagectl branch ...`.

mod diff;
mod init;
mod life;
mod removal;
mod restore;
mod url;

use clap::Subcommand;
use serde_json::{Value, json};

use super::branches::{create, writer};
use super::connection::Remote;
use super::init_state;
use crate::output;
use crate::table::{bytes, table, text};

/// Operations on branches.
#[derive(Debug, Subcommand)]
pub(crate) enum BranchCommand {
    /// Create a branch of another one, at its end or at an earlier point.
    Create {
        /// Its name.
        name: String,
        /// The branch that it continues, by name or id; defaults to the only root, the one that was followed or
        /// imported.
        #[arg(long, value_name = "BRANCH")]
        from: Option<String>,
        /// Where to branch: an LSN (0/16B3748), a time (2026-01-31T12:30:00Z), or '10 minutes ago'.
        #[arg(long, value_name = "MOMENT")]
        at: Option<String>,
        #[command(flatten)]
        life: life::NewLife,
        #[command(flatten)]
        sql: init::SqlArgs,
        #[command(flatten)]
        here: Box<init::HereArgs>,
        #[command(flatten)]
        url: url::UrlArgs,
    },
    /// Run the SQL of a branch that is to run before anybody uses it, if it has not succeeded; with --retry also if it
    /// has failed, on the branch as it was made.
    Init {
        /// Its name or id.
        branch: String,
        /// Run it again if it has failed.
        #[arg(long)]
        retry: bool,
        #[command(flatten)]
        sql: init::SqlArgs,
        #[command(flatten)]
        here: Box<init::HereArgs>,
    },
    /// Show everything that is known of a branch.
    Show {
        /// Its name or id.
        branch: String,
    },
    /// Change how long a branch lives, whether it is protected, its name, labels, owner and reason.
    Set(life::SetArgs),
    /// Let a branch be as it was at an earlier moment, in its place. What it was until now is kept under another name;
    /// nothing is deleted but its computes of this machine.
    Restore(restore::RestoreArgs),
    /// Print the connection string of a branch, through a gateway.
    Url {
        /// Its name or id.
        branch: String,
        #[command(flatten)]
        gateway: url::GatewayAt,
    },
    /// Let a branch begin anew, at the end of the one that it was made of, or at a moment of that. What it has had
    /// since is deleted, and its computes of this machine with it.
    Reset {
        /// Its name or id.
        branch: String,
        /// A moment of the branch that it was made of: an LSN (0/16B3748), a time (2026-01-31T12:30:00Z), or
        /// '10 minutes ago'; defaults to its end.
        #[arg(long, value_name = "MOMENT")]
        to: Option<String>,
        /// Have the server delete it after this time from now on, such as 3d; by default it expires when it would have.
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        #[command(flatten)]
        computes: removal::ComputesOfIt,
        #[command(flatten)]
        run: Box<init::RunArgs>,
    },
    /// List all branches.
    List {
        /// Only those with this label; may be repeated.
        #[arg(long = "label", value_name = "NAME=VALUE", value_parser = life::label)]
        labels: Vec<(String, String)>,
    },
    /// Show which relations differ between two branches or two points in time, and in how many blocks; or how their
    /// schemas differ (--schema), or the rows of a table (--rows).
    Diff(Box<diff::DiffArgs>),
    /// Delete a branch and everything stored for it, and its computes of this machine, which must be stopped.
    Delete {
        /// Its name or id.
        branch: String,
        #[command(flatten)]
        computes: removal::ComputesOfIt,
    },
}

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, command: BranchCommand) -> anyhow::Result<()> {
    match command {
        BranchCommand::Create { name, from, at, life, sql, here, url } => {
            let mut noted = life.noted();
            noted.extend(sql.read()?.map(|sql| ("init_sql".to_owned(), sql)));
            let made = create(remote, &name, from.as_deref(), at.as_deref(), noted)?;
            if url.print_url {
                // The gateway runs what is to be run when somebody comes.
                return url.gateway.print(remote, &made);
            }
            let made = here.settle(remote, &made)?;
            let (id, from) = (text(&made, "timeline_id"), text(&made, "ancestor_timeline_id"));
            let at = text(&made, "ancestor_lsn");
            let summary = format!("branch {name} (timeline {id}) of {from} at LSN {at}{}", init::remark(&made));
            output::finish(remote.common.json, &made, summary);
            Ok(())
        }
        BranchCommand::Url { branch, gateway } => gateway.print(remote, &remote.branch_or_root(Some(&branch))?),
        BranchCommand::Set(args) => life::set(remote, args),
        BranchCommand::Restore(args) => restore::run(remote, &args),
        BranchCommand::Reset { branch, to, ttl, computes, run } => {
            let made = removal::reset(remote, &branch, to.as_deref(), ttl, &computes)?;
            let made = run.settle(remote, &computes.computes(), &made)?;
            let (name, lsn, id) = (text(&made, "name"), text(&made, "ancestor_lsn"), text(&made, "timeline_id"));
            let summary = format!("branch {name} begins anew at LSN {lsn} (timeline {id}){}", init::remark(&made));
            output::finish(remote.common.json, &made, summary);
            Ok(())
        }
        BranchCommand::Init { branch, retry, sql, here } => init::run(remote, &branch, retry, &sql, &here),
        BranchCommand::Show { branch } => init::show(remote, &branch),
        BranchCommand::List { labels } => list(remote, &labels),
        BranchCommand::Diff(args) => diff::run(remote, &args),
        BranchCommand::Delete { branch, computes } => removal::delete(remote, &branch, &computes),
    }
}

fn list(remote: &Remote<'_>, labels: &[(String, String)]) -> anyhow::Result<()> {
    let branches = remote.branches()?;
    let name_of = |id: &Value| {
        let found = branches.iter().find(|branch| branch["timeline_id"] == *id);
        found
            .and_then(|branch| branch["name"].as_str())
            .map_or_else(|| id.as_str().unwrap_or("-").to_owned(), str::to_owned)
    };
    let row = |branch: &Value| {
        let mut row = vec![text(branch, "name"), text(branch, "timeline_id"), name_of(&branch["ancestor_timeline_id"])];
        row.extend([text(branch, "ancestor_lsn"), text(branch, "last_record_lsn")]);
        row.push(bytes(branch, "current_physical_size"));
        let nobody = if branch["is_archived"] == true { "nobody: archived" } else { "-" };
        row.push(writer(branch).unwrap_or_else(|| nobody.to_owned()));
        let life = init_state::words(branch).unwrap_or_else(|| life::life(branch));
        row.extend([life, text(branch, "owner"), life::about(branch)]);
        row
    };
    let listed: Vec<&Value> = branches.iter().filter(|branch| life::has_labels(branch, labels)).collect();
    let rows: Vec<Vec<String>> = listed.iter().copied().map(row).collect();
    let head = ["BRANCH", "TIMELINE", "OF", "AT", "LAST LSN", "SIZE", "WRITTEN BY", "LIFE", "OWNER", "ABOUT"];
    output::finish(remote.common.json, &json!({ "branches": listed }), table(&head, &rows));
    Ok(())
}
