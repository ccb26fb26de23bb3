//! Command-line arguments and their dispatch to subcommands.

use camino::Utf8PathBuf;
use clap::{CommandFactory, Parser, Subcommand};
use utils::lsn::Lsn;

use crate::args::{Common, PageArgs, ShowArgs};
use crate::completion::{self, ManArgs};
use crate::remote::{self, RemoteCommand, ServerArgs};
use crate::scrub::ScrubArgs;
use crate::store::Store;
use crate::tune::TuneArgs;
use crate::verify::VerifyArgs;
use crate::verify_redo::VerifyRedoArgs;

/// Stores the history of Postgres clusters and serves pages as of any LSN.
///
/// Some commands talk to a running pageserver (follow, tenant, fleet, timeline, branch, compute, gateway, layers,
/// bench, top, checkpoint, compact, gc, hold, lease, lsn-at); the others work on a directory that no server is using.
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

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Local(LocalCommand),
    #[command(flatten)]
    Remote(RemoteCommand),
    /// Try settings on your own queries, on a second pageserver that reads the bucket and writes nothing to it, and
    /// print the best to paste. --workdir is the directory of the pageserver whose settings and bucket these are.
    Tune(TuneArgs),
    /// Replay WAL written with wal_consistency_checking=all and compare each page with the image in its record.
    VerifyRedo(VerifyRedoArgs),
    /// See whether this machine has what a pageserver and its computes need: kernel, limits, clock, FUSE, Postgres,
    /// disk, bucket, server and whom it follows. Says what to do where it has not; fails if something cannot work.
    Doctor,
    /// Print completions for a shell: for bash, `source <(pagectl completion bash)`.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Write man pages, one for each command.
    Man(ManArgs),
}

/// Commands that work on a directory.
#[derive(Debug, Subcommand)]
enum LocalCommand {
    /// Import the data directory of a stopped server, or a base backup.
    Import {
        /// The data directory, or a directory with the archives written by `pg_basebackup -Ft`.
        #[arg(long)]
        pgdata: Utf8PathBuf,
    },
    /// Ingest WAL segment files from the end of the store's history to the end of the WAL.
    Ingest {
        /// The directory with the segment files.
        #[arg(long)]
        wal: Utf8PathBuf,
        /// Size in MiB at which an in-memory layer is flushed.
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
    /// Inspect pages.
    Page {
        #[command(subcommand)]
        command: PageCommand,
    },
    /// Compare every page with the files of a stopped server.
    Verify(VerifyArgs),
    /// Inspect layer files.
    Layer {
        #[command(subcommand)]
        command: LayerCommand,
    },
    /// Show what the store contains and how far its history reaches.
    Status,
    /// Verify every file and object against its checksums and index; repair what has a good copy.
    Scrub(ScrubArgs),
    /// Hash everything that is stored as of an LSN.
    Digest {
        /// Hash as of this LSN; defaults to the last one.
        #[arg(long)]
        lsn: Option<Lsn>,
    },
}

#[derive(Debug, Subcommand)]
enum PageCommand {
    /// Show a page's header and line pointers.
    Show {
        #[command(flatten)]
        source: ShowArgs,
    },
}

#[derive(Debug, Subcommand)]
enum LayerCommand {
    /// List header, footer and all versions.
    Dump {
        /// A layer file.
        file: Utf8PathBuf,
    },
    /// Verify every byte.
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
        Command::Tune(args) => crate::tune::run(&common, &args),
        Command::VerifyRedo(args) => crate::verify_redo::run(common.json, args),
        Command::Doctor => crate::doctor::run(&common, &server),
        Command::Completion { shell } => {
            completion::completion(Cli::command(), shell);
            Ok(())
        }
        Command::Man(args) => completion::man(Cli::command(), &args, common.json),
    }
}

fn run_local(mut common: Common, command: LocalCommand) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let checkpoint_distance = match &command {
        LocalCommand::Ingest { layer_mib, .. } => Some(layer_mib << 20),
        _ => None,
    };
    common.workdir = camino::absolute_utf8(&common.workdir)?;
    // Everything stored is private to this user, including what libraries write.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    runtime.block_on(async {
        let store = Store::new(common, checkpoint_distance).await?;
        match command {
            LocalCommand::Import { pgdata } => crate::import::run(&store, &pgdata).await,
            LocalCommand::Ingest { wal, .. } => crate::ingest::run(&store, &wal).await,
            LocalCommand::Getpage { page, out } => crate::getpage::run(&store, page, out).await,
            LocalCommand::Page { command: PageCommand::Show { source } } => crate::page_show::run(&store, source).await,
            LocalCommand::Verify(args) => crate::verify::run(&store, &args).await,
            LocalCommand::Layer { command: LayerCommand::Dump { file } } => crate::layer::dump(&store, &file).await,
            LocalCommand::Layer { command: LayerCommand::Verify { file } } => crate::layer::verify(&store, &file).await,
            LocalCommand::Status => crate::status::run(&store).await,
            LocalCommand::Scrub(args) => crate::scrub::run(&store, &args).await,
            LocalCommand::Digest { lsn } => crate::digest::run(&store, lsn).await,
        }
    })
}
