//! `pagectl verify`: compares every page of every relation, fork and SLRU with the files of a stopped server.

use std::sync::Arc;

use anyhow::bail;
use camino::Utf8PathBuf;
use clap::Args;
use datadir::DataDir;
use utils::lsn::Lsn;
use verify::files;

use crate::output;
use crate::store::{Store, lsn_to_read};

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The data directory.
    #[arg(long)]
    pgdata: Utf8PathBuf,
    /// Compare as of this LSN; defaults to the last one.
    #[arg(long)]
    lsn: Option<Lsn>,
    /// Maximum number of differences to list; all are counted.
    #[arg(long, value_name = "N", default_value_t = 50)]
    max_differences: usize,
}

/// Runs the command.
pub(crate) async fn run(store: &Store, args: &VerifyArgs) -> anyhow::Result<()> {
    let data = DataDir::open(&args.pgdata)?;
    let opened = Arc::new(store.open().await?);
    let lsn = lsn_to_read(&opened, args.lsn)?;
    let found = files::compare(&opened, &data, lsn, args.max_differences).await?;
    if !store.common.json {
        found.differences().iter().for_each(output::line);
        if found.left_out() > 0 {
            output::line(format_args!("and {} more that differ: --max-differences N names so many", found.left_out()));
        }
    }
    output::finish(store.common.json, &found.to_json(), found.summary());
    if found.different() > 0 {
        bail!("{} pages or files differ from {} as of LSN {lsn}", found.different(), args.pgdata);
    }
    Ok(())
}
