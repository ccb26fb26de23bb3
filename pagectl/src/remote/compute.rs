//! `pagectl compute ...`: stock Postgres servers on branches.

mod control;
mod serve;
mod set;
mod show;
mod start;
mod stop;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::bail;
use camino::Utf8PathBuf;
use clap::{Args, Subcommand};
use compute::lifecycle::{self, ComputeConfig, Computes, State};
use serde_json::json;

use super::connection::Remote;
use crate::output;
use control::Registry;
pub(crate) use start::StartArgs;

/// What is done with computes.
#[derive(Debug, Subcommand)]
pub(crate) enum ComputeCommand {
    /// Start a stock Postgres on a branch, or one that was stopped. The branch is made if it is not there.
    Start(Box<StartArgs>),
    /// Stop a compute, and wait until its branch has all that it wrote.
    Stop {
        /// Its name.
        name: String,
        /// For Postgres to stop and the branch to have all.
        #[arg(long, default_value = "120s", value_parser = humantime::parse_duration)]
        timeout: Duration,
    },
    /// Tell a compute something else from now on, whether it runs or not: `list` shows what it is told. Another page
    /// service is effective at once, settings of Postgres at its next start.
    Set {
        /// Its name.
        name: String,
        #[command(flatten)]
        args: Box<set::SetArgs>,
    },
    /// List the computes of this machine, what they were told, and what is wrong with them.
    List,
    /// Open psql on a compute, or print how to reach it.
    Connect {
        /// Its name.
        name: String,
        /// The database.
        #[arg(long, default_value = "postgres")]
        dbname: String,
        /// Only print the connection string.
        #[arg(long)]
        print: bool,
        /// Arguments for psql.
        #[arg(last = true)]
        psql: Vec<String>,
    },
    /// Print the end of a compute's log.
    Logs {
        /// Its name.
        name: String,
        /// How many lines.
        #[arg(long, default_value_t = 50)]
        lines: usize,
    },
    /// Remove a compute that is stopped. Its branch stays.
    Destroy {
        /// Its name.
        name: String,
        /// Also if it runs: what its branch has not got is lost.
        #[arg(long)]
        force: bool,
    },
    /// Do all of this for others, by HTTP, until it is ended.
    Serve(Box<serve::ServeArgs>),
}

/// Where computes are.
#[derive(Debug, Args)]
pub(crate) struct ComputeArgs {
    /// Directory of this machine's computes.
    #[arg(long, global = true, env = "PAGECTL_COMPUTES", default_value = "computes", value_name = "DIR")]
    computes: Utf8PathBuf,
    #[command(subcommand)]
    command: ComputeCommand,
}

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, args: ComputeArgs) -> anyhow::Result<()> {
    let computes = Computes::new(args.computes.into_std_path_buf());
    match args.command {
        ComputeCommand::Start(args) => start::run(remote, &computes, &args),
        ComputeCommand::Stop { name, timeout } => stop::run(remote, &computes, &name, timeout),
        ComputeCommand::Set { name, args } => set::run(remote, &computes, &name, &args),
        ComputeCommand::List => show::list(remote, &computes),
        ComputeCommand::Connect { name, dbname, print, psql } => {
            connect(remote, &computes, &name, &dbname, print, &psql)
        }
        ComputeCommand::Logs { name, lines } => {
            output::line(show::logs(&computes, &name, lines)?);
            Ok(())
        }
        ComputeCommand::Destroy { name, force } => destroy(remote, &computes, &name, force),
        ComputeCommand::Serve(args) => serve::run(remote, computes, *args),
    }
}

fn connect(
    remote: &Remote<'_>,
    computes: &Computes,
    name: &str,
    dbname: &str,
    print: bool,
    psql: &[String],
) -> anyhow::Result<()> {
    let layout = computes.layout(name)?;
    let compute = ComputeConfig::load(&layout)?;
    let connstr = format!("{} dbname={dbname}", lifecycle::connstr(&compute, &layout));
    if print {
        output::finish(remote.common.json, &json!({ "connstr": connstr }), &connstr);
        return Ok(());
    }
    if !matches!(State::of(&compute, &layout), State::Running(_)) {
        bail!("{name} does not run: pagectl compute start {name}");
    }
    // The one of the same installation if it has one: server packages may come without.
    let own = compute.bin_dir.join("psql");
    let program = if own.is_file() { own } else { "psql".into() };
    let error = Command::new(&program).arg(&connstr).args(psql).exec();
    bail!("cannot run {}: {error}. The compute is at {connstr}", program.display())
}

fn destroy(remote: &Remote<'_>, computes: &Computes, name: &str, force: bool) -> anyhow::Result<()> {
    lifecycle::destroy(&computes.layout(name)?, force, &Registry::of(remote))?;
    output::finish(remote.common.json, &json!({ "name": name }), format!("{name} is removed"));
    Ok(())
}
