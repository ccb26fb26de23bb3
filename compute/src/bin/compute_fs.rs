//! `compute-fs`: serves the data directory of a compute as a file system.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use compute::descriptors;
use compute::fetch::Policy;
use compute::layout::Layout;
use compute::source::directory::{self, DirectorySource};
use compute::source::origin::{self, Origin};
use compute::supervisor;

/// Serves the data directory of a compute as a file system.
#[derive(Parser)]
#[command(name = "compute-fs", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Mounts the data directory and serves it until SIGTERM.
    Run {
        /// Directory of the compute.
        #[arg(long)]
        dir: PathBuf,
        #[command(flatten)]
        serving: Serving,
    },
    /// Creates the directory of a compute from a plain data directory whose server is shut down.
    Boot {
        /// Directory of the compute to create. It gets the owner of the plain directory.
        #[arg(long)]
        dir: PathBuf,
        /// The plain data directory.
        #[arg(long)]
        source_directory: PathBuf,
    },
    /// Unmounts the file system and kills a Postgres that still runs on it.
    Stop {
        /// Directory of the compute.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Serves the connection on standard input; started by `run`.
    #[command(hide = true)]
    Serve {
        /// Directory of the compute.
        #[arg(long)]
        dir: PathBuf,
        #[command(flatten)]
        serving: Serving,
        /// Take over from a daemon that has died.
        #[arg(long)]
        resume: bool,
    },
}

#[derive(Args)]
struct Serving {
    /// Plain data directory to read relations from; by default the compute's timeline.
    #[arg(long)]
    source_directory: Option<PathBuf>,
    /// Maximum number of concurrent requests to the source.
    #[arg(long, default_value_t = Policy::default().in_flight)]
    in_flight: usize,
    /// How many MiB of a table are fetched ahead of a scan; 0: only what is read.
    #[arg(long, default_value_t = Policy::default().ahead_mib)]
    ahead_mib: u32,
    /// Seconds after which an unanswered request is retried.
    #[arg(long, default_value_t = Policy::default().attempt.as_secs())]
    attempt_seconds: u64,
    /// Seconds after which a read fails if the source does not answer.
    #[arg(long, default_value_t = Policy::default().give_up.as_secs())]
    give_up_seconds: u64,
    /// Milliseconds by which every answer of the source is delayed: for experiments.
    #[arg(long, default_value_t = 0, hide = true)]
    delay_ms: u64,
}

impl Serving {
    fn policy(&self) -> Policy {
        Policy {
            in_flight: self.in_flight,
            ahead_mib: self.ahead_mib,
            attempt: Duration::from_secs(self.attempt_seconds),
            give_up: Duration::from_secs(self.give_up_seconds),
            ..Policy::default()
        }
    }

    /// The same options as arguments of `serve`.
    fn args(&self) -> Vec<String> {
        let mut args = vec![
            format!("--in-flight={}", self.in_flight),
            format!("--ahead-mib={}", self.ahead_mib),
            format!("--attempt-seconds={}", self.attempt_seconds),
            format!("--give-up-seconds={}", self.give_up_seconds),
            format!("--delay-ms={}", self.delay_ms),
        ];
        args.extend(self.source_directory.iter().map(|dir| format!("--source-directory={}", dir.display())));
        args
    }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false).init();
    match run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("compute-fs: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    if matches!(cli.command, Command::Serve { .. }) {
        // Without it, files are opened more slowly now and then.
        let _ = descriptors::make_room(std::io::stderr());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    match cli.command {
        Command::Run { dir, serving } => runtime.block_on(supervisor::run(&layout(&dir)?, &serving.args()))?,
        Command::Boot { dir, source_directory } => directory::boot(&source_directory, &Layout::new(dir))?,
        Command::Stop { dir } => supervisor::launch::stop(&layout(&dir)?, Duration::from_secs(60))?,
        Command::Serve { dir, serving, resume } => {
            let outcome = runtime.block_on(serve(&layout(&dir)?, &serving, resume));
            // Nobody waits for what is still in flight.
            runtime.shutdown_background();
            if let Err(error) = outcome {
                tracing::error!("{error:#}");
                let code = if resume { supervisor::CANNOT_RESUME } else { 1 };
                return Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn layout(dir: &std::path::Path) -> Result<Layout> {
    Ok(Layout::new(dir.canonicalize().with_context(|| dir.display().to_string())?))
}

async fn serve(layout: &Layout, serving: &Serving, resume: bool) -> Result<()> {
    // Files that Postgres creates are private to its user, and so are ours.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    let _lock = supervisor::lock_daemon(layout)?;
    let connection = std::io::stdin().as_fd().try_clone_to_owned()?;
    let Some(root) = &serving.source_directory else {
        let source = Origin::of(layout)?.source()?;
        env::spawn::vital("look for another page server", origin::keep_up(layout.clone(), source.clone()));
        return Ok(compute::fs::serve(layout, connection, source, serving.policy(), resume).await?);
    };
    let source = DirectorySource::open(root).with_context(|| root.display().to_string())?;
    let source = source.with_delay(Duration::from_millis(serving.delay_ms));
    compute::fs::serve(layout, connection, source, serving.policy(), resume).await?;
    Ok(())
}
