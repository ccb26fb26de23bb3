//! Checks of project rules that no compiler enforces: the direction of dependencies, and sizes.
//!
//! `xtask layers` reads `docs/layers.toml` and fails on an import that points up or sideways; `xtask tidy` reads
//! `docs/ratchet.toml` and fails when anything it measures grows. Both print one line per finding, `file:line: what`.
#![forbid(unsafe_code)]
// A build-time tool: it has no seams for disk or clock, and writes only one file (the ratchet).
#![allow(clippy::disallowed_methods)]

mod layers;
mod source;
mod tidy;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

/// Command line of `xtask`.
#[derive(Parser)]
#[command(about = "Checks of the workspace's own rules")]
struct Args {
    /// Root of the workspace; by default found upwards from the current directory.
    #[arg(long, global = true)]
    root: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Fail on an import or a crate dependency that violates the ranks in docs/layers.toml.
    Layers,
    /// Fail on anything larger than docs/ratchet.toml allows.
    Tidy {
        /// Lower the ratchet to the present sizes; never raises it and never adds an offender.
        #[arg(long)]
        update: bool,
    },
}

fn main() -> ExitCode {
    match run(Args::parse()) {
        Ok(code) => code,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: Args) -> Result<ExitCode> {
    let root = match args.root {
        Some(root) => root,
        None => find_root()?,
    };
    let (findings, summary) = match args.command {
        Command::Layers => layers::check(&root)?,
        Command::Tidy { update } => tidy::check(&root, update)?,
    };
    for finding in &findings {
        println!("{finding}");
    }
    println!("{summary}");
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The nearest directory upwards that contains `docs/layers.toml`.
fn find_root() -> Result<PathBuf> {
    let here = std::env::current_dir().context("current directory")?;
    here.ancestors()
        .find(|dir| dir.join("docs/layers.toml").is_file())
        .map(|dir| dir.to_path_buf())
        .with_context(|| format!("no docs/layers.toml in {} or above; use --root", here.display()))
}
