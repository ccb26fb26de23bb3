//! Commands for a running pageserver; each is one or a few calls of its management interface.

mod bench;
mod branch;
mod branches;
mod client;
mod compact;
mod compute;
mod condition;
mod connection;
mod detach;
mod fleet;
mod follow;
mod history;
mod init_state;
mod layers;
mod limits;
mod lsn;
mod moment;
mod placing;
mod plan;
mod progress;
mod quota;
pub(crate) mod reach;
mod scrub;
mod tenant;
mod timeline;
mod top;

use camino::Utf8PathBuf;
use clap::Subcommand;
use pageserver_api::shard::TenantShardId;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::args::Common;
use crate::scrub::ScrubArgs;
pub(crate) use client::Client;
use connection::Remote;
pub(crate) use connection::ServerArgs;
use history::HoldCommand;
use limits::HistoryCommand;

/// Commands for a running server.
#[derive(Debug, Subcommand)]
pub(crate) enum RemoteCommand {
    /// Follow a running Postgres: copy it, then stream its WAL.
    #[command(alias = "attach")]
    Follow(follow::FollowArgs),
    /// Tenants: list, create, quota, standby, move, delete.
    Tenant {
        #[command(subcommand)]
        command: TenantCommand,
    },
    /// All servers on one bucket: status, drain, fill, rebalance.
    Fleet {
        #[command(subcommand)]
        command: fleet::FleetCommand,
    },
    /// Timelines: list, info, branch, archive, unarchive, detach, delete.
    Timeline {
        #[command(subcommand)]
        command: TimelineCommand,
    },
    /// Branches, by name: create, list, show, set, init, diff, reset, restore, delete.
    Branch {
        #[command(subcommand)]
        command: Box<branch::BranchCommand>,
    },
    /// Stock Postgres servers on branches: start, stop, list, connect, logs, destroy.
    Compute(compute::ComputeArgs),
    /// One Postgres address for all branches: computes start when a client asks for their branch, and stop when nobody
    /// is connected. A client names a branch by options=-cbranch=NAME or user=ROLE@NAME, and a moment of it by
    /// NAME@-10min, NAME@TIME or NAME@LSN.
    Gateway(Box<compute::gateway::GatewayArgs>),
    /// List the layers of a timeline, or draw them.
    Layers {
        /// Draw the layers to this SVG file: keys horizontally, LSNs vertically, one box per layer.
        #[arg(long, value_name = "FILE")]
        svg: Option<Utf8PathBuf>,
    },
    /// Ask for random pages of a relation and measure: answers per second, and how long they took.
    Bench(bench::BenchArgs),
    /// Show what the server does, over and over: WAL, pages, bucket, and each branch.
    Top(top::TopArgs),
    /// Make everything received so far durable.
    Checkpoint,
    /// Keep an LSN readable for a while.
    Lease {
        /// The LSN to keep readable.
        lsn: Lsn,
    },
    /// Sort, merge and image the layers of a timeline, as far as that is due. The server does so by itself.
    Compact {
        /// At once, which is what it always does.
        #[arg(long)]
        now: bool,
    },
    /// Show the history of a tenant that nothing keeps, and what keeps the rest; with --now, remove it. The server does
    /// so by itself.
    Gc(history::GcArgs),
    /// How much history a timeline keeps: show, set.
    History {
        /// What to do.
        #[command(subcommand)]
        command: HistoryCommand,
    },
    /// Keep moments readable for as long as you want.
    Hold {
        /// What to do.
        #[command(subcommand)]
        command: HoldCommand,
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
    /// Have the server follow the owner of a tenant, which is another server on the same bucket, and take the tenant
    /// over when that is gone.
    Standby {
        /// Its id.
        id: TenantShardId,
    },
    /// Hand a tenant over to another server on the same bucket, which becomes a standby first. Computes that know both
    /// servers notice no more than a pause; the former owner becomes a standby.
    Move(placing::MoveArgs),
    /// Show how much a tenant may have, or change that: branches, computes, bytes.
    Quota(quota::QuotaArgs),
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
    /// Archive a timeline: it takes in nothing more, can be read at its end, and the history before that goes.
    Archive {
        /// Its name or id, if not given by --timeline.
        branch: Option<String>,
    },
    /// Take an archived timeline back into service, with the history that is left.
    Unarchive {
        /// Its name or id, if not given by --timeline.
        branch: Option<String>,
    },
    /// Delete a timeline and everything stored for it.
    Delete,
    /// Make a branch a timeline of its own: it copies what it inherits, and its history begins where it branched off.
    /// The timeline that it branched off may be deleted then.
    Detach {
        /// Its name or id; defaults to the timeline of --timeline.
        branch: Option<String>,
    },
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
        RemoteCommand::Tenant { command: TenantCommand::Standby { id } } => tenant::standby(&remote, id),
        RemoteCommand::Tenant { command: TenantCommand::Move(args) } => placing::move_tenant(&remote, &args),
        RemoteCommand::Tenant { command: TenantCommand::Delete { id } } => tenant::delete(&remote, id),
        RemoteCommand::Tenant { command: TenantCommand::Quota(args) } => quota::run(&remote, &args),
        RemoteCommand::Fleet { command } => fleet::run(&remote, &command),
        RemoteCommand::Timeline { command: TimelineCommand::List } => timeline::list(&remote),
        RemoteCommand::Timeline { command: TimelineCommand::Info } => timeline::info(&remote),
        RemoteCommand::Timeline { command: TimelineCommand::Branch { at_lsn, at_time, id } } => {
            timeline::branch(&remote, at_lsn, at_time, id)
        }
        RemoteCommand::Timeline { command: TimelineCommand::Archive { branch } } => {
            timeline::archive(&remote, branch.as_deref(), true)
        }
        RemoteCommand::Timeline { command: TimelineCommand::Unarchive { branch } } => {
            timeline::archive(&remote, branch.as_deref(), false)
        }
        RemoteCommand::Timeline { command: TimelineCommand::Delete } => timeline::delete(&remote),
        RemoteCommand::Timeline { command: TimelineCommand::Detach { branch } } => {
            detach::run(&remote, branch.as_deref())
        }
        RemoteCommand::Branch { command } => branch::run(&remote, *command),
        RemoteCommand::Compute(args) => compute::run(&remote, args),
        RemoteCommand::Gateway(args) => compute::gateway::run(&remote, *args),
        RemoteCommand::Layers { svg } => layers::run(&remote, svg),
        RemoteCommand::Bench(args) => bench::run(&remote, &args),
        RemoteCommand::Top(args) => top::run(&remote, &args),
        RemoteCommand::Checkpoint => lsn::checkpoint(&remote),
        RemoteCommand::Compact { now: _ } => compact::run(&remote),
        RemoteCommand::Gc(args) => history::gc(&remote, args),
        RemoteCommand::History { command } => limits::run(&remote, command),
        RemoteCommand::Hold { command } => history::hold(&remote, command),
        RemoteCommand::Lease { lsn } => lsn::lease(&remote, lsn),
        RemoteCommand::LsnAt { moment, lease } => lsn::at(&remote, &moment, lease),
    }
}
