//! Arguments, and the way from them to a sub-command.

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand};
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use pageserver_api::reltag::{BlockNumber, RelTag};
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::remote::{self, RemoteCommand, ServerArgs};
use crate::scrub::ScrubArgs;
use crate::store::Store;
use crate::verify_redo::VerifyRedoArgs;

/// Stores the history of Postgres clusters, and gives pages as of any LSN.
///
/// Some commands talk to a pageserver that runs (attach, tenant, timeline, branch, compute, layers, checkpoint, lease,
/// lsn-at), the others work on a directory that no server uses.
#[derive(Debug, Parser)]
#[command(name = "pagectl", version)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    command: Command,
}

/// Where the store is and how it is used.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Directory of the store.
    #[arg(long, global = true, default_value = ".")]
    pub(crate) workdir: Utf8PathBuf,
    /// Tenant, if there is more than one timeline (32 hexadecimal digits).
    #[arg(long, global = true, requires = "timeline")]
    pub(crate) tenant: Option<TenantShardId>,
    /// Timeline of the tenant (32 hexadecimal digits).
    #[arg(long, global = true, requires = "tenant")]
    pub(crate) timeline: Option<TimelineId>,
    /// When files bypass the kernel's page cache: buffered, direct (reads only), direct-rw.
    #[arg(long, global = true, default_value_t)]
    pub(crate) io_mode: IoMode,
    /// std-fs or tokio-epoll-uring; the best that works if not given.
    #[arg(long, global = true)]
    pub(crate) io_engine: Option<IoEngineKind>,
    /// Print results as JSON, one object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Local(LocalCommand),
    #[command(flatten)]
    Remote(RemoteCommand),
    /// Replay WAL written with wal_consistency_checking=all, and compare each page with the image in its record.
    VerifyRedo(VerifyRedoArgs),
}

/// What works on a directory.
#[derive(Debug, Subcommand)]
enum LocalCommand {
    /// Take in the data directory of a stopped server, or a base backup.
    Import {
        /// The data directory, or a directory with the archives that `pg_basebackup -Ft` writes.
        #[arg(long)]
        pgdata: Utf8PathBuf,
    },
    /// Take in WAL segment files from where the store stands to their end.
    Ingest {
        /// The directory with the segment files.
        #[arg(long)]
        wal: Utf8PathBuf,
        /// Size of an in-memory layer, in MiB, at which it is written out.
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4096))]
        layer_mib: u64,
    },
    /// Print or write one page.
    Getpage {
        #[command(flatten)]
        page: PageArgs,
        /// Write the page's 8192 bytes to this file.
        #[arg(long)]
        out: Option<Utf8PathBuf>,
    },
    /// Look at pages.
    Page {
        #[command(subcommand)]
        command: PageCommand,
    },
    /// Compare every page with the files of a stopped server.
    Verify {
        /// The data directory.
        #[arg(long)]
        pgdata: Utf8PathBuf,
        /// Compare as of this LSN; the last one if not given.
        #[arg(long)]
        lsn: Option<Lsn>,
    },
    /// Look at layer files.
    Layer {
        #[command(subcommand)]
        command: LayerCommand,
    },
    /// What the store holds and how far it has come.
    Status,
    /// Verify every file and every object against checksums and index; repair what has a good copy.
    Scrub(ScrubArgs),
    /// One hash over all that is stored as of an LSN.
    Digest {
        /// As of this LSN; the last one if not given.
        #[arg(long)]
        lsn: Option<Lsn>,
    },
}

/// Which page.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PageArgs {
    /// Relation: TABLESPACE/DATABASE/RELATION, with _fsm, _vm or _init for another fork.
    #[arg(long)]
    pub(crate) rel: RelTag,
    /// Block number.
    #[arg(long)]
    pub(crate) block: BlockNumber,
    /// As of this LSN; the last one if not given.
    #[arg(long)]
    pub(crate) lsn: Option<Lsn>,
}

#[derive(Debug, Subcommand)]
enum PageCommand {
    /// Show a page's header and line pointers.
    Show {
        #[command(flatten)]
        source: ShowArgs,
    },
}

/// A page of the store, or of a file.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Relation: TABLESPACE/DATABASE/RELATION, with _fsm, _vm or _init for another fork.
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    pub(crate) rel: Option<RelTag>,
    /// Block number.
    #[arg(long, default_value_t = 0)]
    pub(crate) block: BlockNumber,
    /// As of this LSN; the last one if not given.
    #[arg(long, conflicts_with = "file")]
    pub(crate) lsn: Option<Lsn>,
    /// Read the page from this file instead of the store.
    #[arg(long)]
    pub(crate) file: Option<Utf8PathBuf>,
}

#[derive(Debug, Subcommand)]
enum LayerCommand {
    /// List header, footer and every version.
    Dump {
        /// A layer file.
        file: Utf8PathBuf,
    },
    /// Check every byte.
    Verify {
        /// A layer file.
        file: Utf8PathBuf,
    },
}

/// Runs the command of `cli`.
pub(crate) fn run(cli: Cli) -> anyhow::Result<()> {
    let Cli { common, server, command } = cli;
    match command {
        Command::Local(LocalCommand::Scrub(args)) if args.running => remote::run_scrub(&common, &server, &args),
        Command::Local(command) => run_local(common, command),
        Command::Remote(command) => remote::run(&common, &server, command),
        Command::VerifyRedo(args) => crate::verify_redo::run(common.json, &args),
    }
}

fn run_local(mut common: Common, command: LocalCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let checkpoint_distance = match &command {
        LocalCommand::Ingest { layer_mib, .. } => Some(layer_mib << 20),
        _ => None,
    };
    common.workdir = camino::absolute_utf8(&common.workdir)?;
    runtime.block_on(async {
        let store = Store::new(common, checkpoint_distance).await?;
        match command {
            LocalCommand::Import { pgdata } => crate::import::run(&store, &pgdata).await,
            LocalCommand::Ingest { wal, .. } => crate::ingest::run(&store, &wal).await,
            LocalCommand::Getpage { page, out } => crate::getpage::run(&store, page, out).await,
            LocalCommand::Page { command: PageCommand::Show { source } } => crate::page_show::run(&store, source).await,
            LocalCommand::Verify { pgdata, lsn } => crate::verify::run(&store, &pgdata, lsn).await,
            LocalCommand::Layer { command: LayerCommand::Dump { file } } => crate::layer::dump(&store, &file).await,
            LocalCommand::Layer { command: LayerCommand::Verify { file } } => crate::layer::verify(&store, &file).await,
            LocalCommand::Status => crate::status::run(&store).await,
            LocalCommand::Scrub(args) => crate::scrub::run(&store, &args).await,
            LocalCommand::Digest { lsn } => crate::digest::run(&store, lsn).await,
        }
    })
}
