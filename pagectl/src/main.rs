//! `pagectl`: imports data directories, ingests WAL files, reads and compares pages, inspects layers, and controls a
//! running pageserver.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod args;
mod checkup;
mod cli;
mod completion;
mod digest;
mod doctor;
mod getpage;
mod import;
mod import_tars;
mod ingest;
mod layer;
mod output;
mod page_show;
mod remote;
mod scrub;
mod status;
mod store;
mod table;
mod target;
mod tune;
mod verify;
mod verify_redo;

use std::process::ExitCode;

use clap::Parser;

/// jemalloc reuses the memory of one layer for the next, whichever threads work on them.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    output::init_logging();
    match cli::run(cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => match error.downcast_ref::<output::Ended>() {
            Some(output::Ended { status, error: None }) => ExitCode::from(*status),
            Some(output::Ended { status, error: Some(error) }) => {
                eprintln!("pagectl: {error:#}");
                ExitCode::from(*status)
            }
            None => {
                eprintln!("pagectl: {error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
