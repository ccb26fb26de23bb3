//! Commands for a running pageserver; each is one or a few calls of its management interface.

mod branch;
mod client;
mod compute;
mod connection;
mod follow;
mod layers;
mod lsn;
mod moment;
mod scrub;
mod tenant;
mod timeline;

use camino::Utf8PathBuf;
use clap::Subcommand;
use pageserver_api::shard::TenantShardId;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::args::Common;
use crate::scrub::ScrubArgs;
use connection::Remote;
pub(crate) use connection::ServerArgs;

/// Commands for a running server.
#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    /// Follow a running Postgres: copy it, then stream its WAL.
    #[command(alias = "attach")]
    Follow(follow::FollowArgs),
    /// Tenants: list, create, delete.
    Tenant {
        #[command(subcommand)]
        command: TenantCommand,
    },
    /// Timelines: list, info, branch, delete.
    Timeline {
        #[command(subcommand)]
        command: TimelineCommand,
    },
    /// Branches, by name: create, list, diff, delete.
    Branch {
        #[command(subcommand)]
        command: branch::BranchCommand,
    },
    /// Stock Postgres servers on branches: start, stop, list, connect, logs, destroy.
    Compute(compute::ComputeArgs),
    /// List the layers of a timeline, or draw them.
    Layers {
        /// Draw the layers to this SVG file: keys horizontally, LSNs vertically, one box per layer.
        #[arg(long, value_name = "FILE")]
        svg: Option<Utf8PathBuf>,
    },
    /// Make everything received so far durable.
    Checkpoint,
    /// Keep an LSN readable for a while.
    Lease {
        /// The LSN to keep readable.
        lsn: Lsn,
    },
    /// Find the last LSN up to which no commit is later than a given time.
    LsnAt {
        /// The time, such as 2026-01-31T12:30:00Z.
        moment: String,
        /// Lease the LSN too.
        #[arg(long)]
        lease: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TenantCommand {
    /// List all tenants.
    List,
    /// Create a tenant without timelines.
    Create {
        /// Its id; random if not given.
        id: Option<TenantId>,
    },
    /// Delete a tenant and everything stored for it.
    Delete {
        /// Its id.
        id: TenantShardId,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum TimelineCommand {
    /// List all timelines.
    List,
    /// Show everything known about a timeline.
    Info,
    /// Branch off a timeline: at its end, at an LSN, or at a time.
    Branch {
        /// Branch at this LSN, the last one in common.
        #[arg(long, conflicts_with = "at_time")]
        at_lsn: Option<Lsn>,
        /// Branch at the last commit up to this time, such as 2026-01-31T12:30:00Z.
        #[arg(long, value_name = "MOMENT")]
        at_time: Option<String>,
        /// The branch's id; random if not given.
        #[arg(long)]
        id: Option<TimelineId>,
    },
    /// Delete a timeline and everything stored for it.
    Delete,
}

/// Asks the server to scrub its storage.
pub(crate) fn run_scrub(common: &Common, server: &ServerArgs, args: &ScrubArgs) -> anyhow::Result<()> {
    scrub::run(&Remote::new(common, server)?, args)
}

/// Runs the command.
pub(crate) fn run(common: &Common, server: &ServerArgs, command: RemoteCommand) -> anyhow::Result<()> {
    let remote = Remote::new(common, server)?;
    match command {
        RemoteCommand::Follow(args) => follow::run(&remote, args),
        RemoteCommand::Tenant { command: TenantCommand::List } => tenant::list(&remote),
        RemoteCommand::Tenant { command: TenantCommand::Create { id } } => tenant::create(&remote, id),
        RemoteCommand::Tenant { command: TenantCommand::Delete { id } } => tenant::delete(&remote, id),
        RemoteCommand::Timeline { command: TimelineCommand::List } => timeline::list(&remote),
        RemoteCommand::Timeline { command: TimelineCommand::Info } => timeline::info(&remote),
        RemoteCommand::Timeline { command: TimelineCommand::Branch { at_lsn, at_time, id } } => {
            timeline::branch(&remote, at_lsn, at_time, id)
        }
        RemoteCommand::Timeline { command: TimelineCommand::Delete } => timeline::delete(&remote),
        RemoteCommand::Branch { command } => branch::run(&remote, command),
        RemoteCommand::Compute(args) => compute::run(&remote, args),
        RemoteCommand::Layers { svg } => layers::run(&remote, svg),
        RemoteCommand::Checkpoint => lsn::checkpoint(&remote),
        RemoteCommand::Lease { lsn } => lsn::lease(&remote, lsn),
        RemoteCommand::LsnAt { moment, lease } => lsn::at(&remote, &moment, lease),
    }
}
