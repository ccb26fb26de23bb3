//! Arguments of `pagectl tune`.

use std::path::PathBuf;
use std::time::Duration;

use camino::Utf8PathBuf;
use clap::Args;

/// What is tried, and where.
#[derive(Debug, Args)]
pub(crate) struct TuneArgs {
    /// The queries: SQL as psql runs it. They should only read, and each should be asked as in use.
    #[arg(long, value_name = "FILE")]
    pub(super) sql: Utf8PathBuf,
    /// What your computes have of this setting of Postgres now.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    pub(super) effective_io_concurrency: u64,
    /// The branch, by name or id; defaults to the only root.
    #[arg(long)]
    pub(super) branch: Option<String>,
    /// The database.
    #[arg(long, default_value = "postgres")]
    pub(super) dbname: String,
    /// How often the queries run with each choice of settings; their median counts.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..))]
    pub(super) rounds: u8,
    /// Where the second pageserver keeps what it fetches; everything in it is removed again.
    #[arg(long, value_name = "DIR")]
    pub(super) place: Option<Utf8PathBuf>,
    /// Directory of the Postgres programs; by default it is searched for by the branch's version.
    #[arg(long, env = "PAGECTL_PG_BIN", value_name = "DIR")]
    pub(super) pg_bin: Option<PathBuf>,
    /// Time limit for each run of the queries.
    #[arg(long, default_value = "10m", value_parser = humantime::parse_duration)]
    pub(super) timeout: Duration,
}
