//! `pagectl verify-redo`: checks redo against the page images that a server with `wal_consistency_checking = all`
//! writes to its WAL.

use anyhow::bail;
use camino::Utf8PathBuf;
use clap::Args;
use indicatif::ProgressBar;
use verify::consistency::{Input, Progress, verify};

use crate::output;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct VerifyRedoArgs {
    /// Copy of the data directory of the stopped server, from before the first record.
    #[arg(long)]
    base: Utf8PathBuf,
    /// Directory with the WAL segment files written since then.
    #[arg(long)]
    wal: Utf8PathBuf,
    /// Data directory of the stopped server after the last record; all pages are compared with it at the end.
    #[arg(long = "final")]
    last: Option<Utf8PathBuf>,
    /// Also replay damaged copies of one in this many records: replay may fail, but must leave the page unchanged.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    damage_every: Option<u64>,
}

/// A progress bar that appears once its length is known.
struct Bar(Option<ProgressBar>);

impl Progress for Bar {
    fn begin(&mut self, total: u64) {
        self.0 = Some(output::byte_bar(total));
    }

    fn advance(&mut self, bytes: u64) {
        if let Some(bar) = &self.0 {
            bar.inc(bytes);
        }
    }
}

/// Runs the command.
pub(crate) fn run(json: bool, args: VerifyRedoArgs) -> anyhow::Result<()> {
    let VerifyRedoArgs { base, wal, last, damage_every } = args;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(verify(&Input { base, wal, last, damage_every }, &mut Bar(None)))?;
    if !json {
        report.lines().iter().for_each(output::line);
    }
    output::finish(json, &report.to_json(), report.summary());
    if report.failed() {
        bail!("redo differs from what Postgres {} made of the same records", report.version().major());
    }
    Ok(())
}
