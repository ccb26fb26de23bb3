//! `pageserver`: stores the history of Postgres clusters and serves pages as of any LSN.
#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod allocator;
mod args;
mod init;
mod lock;
mod logging;
mod notify;
mod ports;
mod serve;
mod signals;

use std::process::ExitCode;

use anyhow::Context;
use clap::{CommandFactory, Parser};
use engine::config::CompactionPolicy;
use pageserver::settings::{Settings, commented_file};

use args::{Args, Command, Place};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Options that the allocator reads at startup. Freed memory returns to the system within a quarter of a second, even
/// if the process is idle: otherwise short-lived peaks would be retained, once per core. Buffers of a MiB and more,
/// such as those of requests to the bucket, share one arena, which returns them at once: each arena would keep its own.
// SAFETY: the allocator declares this symbol as a pointer to a NUL-terminated string, which has the representation of
// a reference to a byte array, and only reads it.
#[allow(unsafe_code)]
#[unsafe(export_name = "_rjem_malloc_conf")]
static ALLOCATOR_OPTIONS: &[u8; 69] = b"background_thread:true,dirty_decay_ms:250,oversize_threshold:1048576\0";

fn main() -> ExitCode {
    let args = Args::parse();
    // Everything written is private to this user, including what libraries write.
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pageserver: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Some(Command::Init { place }) => return init::run(&place).map(|()| ExitCode::SUCCESS),
        Some(Command::Man { dir }) => {
            clap_mangen::generate_to(Args::command(), &dir)
                .with_context(|| format!("cannot write man pages to {dir}"))?;
            return Ok(ExitCode::SUCCESS);
        }
        None => {}
    }
    let place = args.place.context("--workdir is missing")?;
    let workdir = place.absolute_workdir()?;
    let (settings, remarks) = Settings::load(&workdir, &place.overrides())?;
    if args.print_config {
        print!("{}", commented_file(&settings));
        return Ok(ExitCode::SUCCESS);
    }
    logging::init(&settings)?;
    remarks.iter().for_each(|remark| tracing::warn!("{remark}"));
    metrics::set_allocator(allocator::bytes_by_state);
    let lock = lock::WorkdirLock::take(&workdir)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("pageserver")
        .build()
        .context("cannot start the runtime")?;
    // One for each job that may run at once.
    let aside =
        env::aside::Aside::start(2, CompactionPolicy::NICENESS).context("cannot start threads for compaction")?;
    let outcome = runtime.block_on(serve::run(settings, workdir));
    // Whatever is still running was told to stop and had enough time.
    runtime.shutdown_background();
    drop(aside);
    drop(lock);
    outcome
}

impl Place {
    fn absolute_workdir(&self) -> anyhow::Result<camino::Utf8PathBuf> {
        camino::absolute_utf8(&self.workdir)
            .with_context(|| format!("cannot use {} as working directory", self.workdir))
    }
}
