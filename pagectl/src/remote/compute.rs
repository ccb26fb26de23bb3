//! `pagectl compute ...`: stock Postgres servers on branches.

mod bring;
mod control;
pub(crate) mod gateway;
mod gather;
pub(crate) mod init;
mod lag;
mod promote;
pub(crate) mod reader;
mod replica;
mod serve;
mod set;
mod show;
mod start;
mod stop;
mod wanted;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::bail;
use camino::Utf8PathBuf;
use clap::{Args, Subcommand};
use compute::lifecycle::{self, ComputeConfig, Computes, State};
use serde_json::{Value, json};

use super::connection::Remote;
use crate::output;
pub(crate) use control::Registry;
pub(crate) use start::StartArgs;
pub(crate) use wanted::HostArgs;

use control::Opening;
use init::Here;
use start::By;

/// Operations on computes.
#[derive(Debug, Subcommand)]
pub(crate) enum ComputeCommand {
    /// Start a stock Postgres on a branch, new or stopped. The branch is created if it does not exist.
    Start(Box<StartArgs>),
    /// Stop a compute, and wait until its branch has everything that it wrote.
    Stop {
        /// Its name.
        name: String,
        /// Time limit for Postgres to stop and for the branch to receive everything.
        #[arg(long, default_value = "120s", value_parser = humantime::parse_duration)]
        timeout: Duration,
    },
    /// Make a replica the primary: it writes the branch from now on, and the compute that has done so is stopped, or
    /// ended if it does not stop. Other replicas follow the new one.
    Promote(Box<promote::PromoteArgs>),
    /// Change a compute's options, whether it runs or not; `list` shows them. A new page service takes effect at
    /// once, settings of Postgres at its next start.
    Set {
        /// Its name.
        name: String,
        #[command(flatten)]
        args: Box<set::SetArgs>,
    },
    /// List the computes of this machine, their options and their problems.
    List,
    /// Open psql on a compute, or print its connection string.
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
    /// Remove a stopped compute. Its branch remains.
    Destroy {
        /// Its name.
        name: String,
        /// Even if it is running: what its branch has not received is lost.
        #[arg(long)]
        force: bool,
    },
    /// Offer all these commands over HTTP until terminated.
    Serve(Box<serve::ServeArgs>),
}

/// Options of all compute commands.
#[derive(Debug, Args)]
pub(crate) struct ComputeArgs {
    #[command(flatten)]
    directory: Directory,
    #[command(subcommand)]
    command: ComputeCommand,
}

/// Where this machine's computes are.
#[derive(Debug, Args)]
pub(crate) struct Directory {
    /// Directory of this machine's computes.
    #[arg(long, global = true, env = "PAGECTL_COMPUTES", default_value = "computes", value_name = "DIR")]
    computes: Utf8PathBuf,
}

impl Directory {
    pub(crate) fn computes(&self) -> Computes {
        Computes::new(self.computes.as_std_path())
    }
}

/// Runs the command.
pub(super) fn run(remote: &Remote<'_>, args: ComputeArgs) -> anyhow::Result<()> {
    let computes = args.directory.computes();
    match args.command {
        ComputeCommand::Start(args) => {
            let here = Here { remote, computes: &computes, host: &args.host };
            let prepare = |branch: &Value| init::ready(here, branch, &init::Wish::default());
            start::run(remote, &computes, &args, &By { opening: Opening::Use, prepare: &prepare })
        }
        ComputeCommand::Stop { name, timeout } => stop::run(remote, &computes, &name, timeout),
        ComputeCommand::Promote(args) => promote::run(remote, &computes, &args),
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
    // Prefer the psql of the same installation; server packages may lack it.
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
