//! Arguments shared by several subcommands.

use camino::Utf8PathBuf;
use clap::Args;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use pageserver_api::reltag::{BlockNumber, RelTag};
use pageserver_api::shard::TenantShardId;
use utils::lsn::Lsn;

use crate::target::TimelineRef;

/// The store and how to access it.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Directory of the store.
    #[arg(long, global = true, default_value = ".")]
    pub(crate) workdir: Utf8PathBuf,
    /// Tenant (32 hexadecimal digits); needed if there is more than one.
    #[arg(long, global = true)]
    pub(crate) tenant: Option<TenantShardId>,
    /// Timeline: its id (32 hexadecimal digits) or the name of its branch; needed if there is more than one.
    #[arg(long, global = true, value_name = "ID|NAME")]
    pub(crate) timeline: Option<TimelineRef>,
    /// When files bypass the kernel's page cache: buffered, direct (reads only), direct-rw.
    #[arg(long, global = true, default_value_t)]
    pub(crate) io_mode: IoMode,
    /// std-fs or tokio-epoll-uring; defaults to the best one that works.
    #[arg(long, global = true)]
    pub(crate) io_engine: Option<IoEngineKind>,
    /// Print the result as one JSON object.
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// Selects a page.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct PageArgs {
    /// Relation: TABLESPACE/DATABASE/RELATION, with _fsm, _vm or _init for another fork.
    #[arg(long)]
    pub(crate) rel: RelTag,
    /// Block number.
    #[arg(long)]
    pub(crate) block: BlockNumber,
    /// Read as of this LSN; defaults to the last one.
    #[arg(long)]
    pub(crate) lsn: Option<Lsn>,
}

/// A page of the store or of a file.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// Relation: TABLESPACE/DATABASE/RELATION, with _fsm, _vm or _init for another fork.
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    pub(crate) rel: Option<RelTag>,
    /// Block number.
    #[arg(long, default_value_t = 0)]
    pub(crate) block: BlockNumber,
    /// Read as of this LSN; defaults to the last one.
    #[arg(long, conflicts_with = "file")]
    pub(crate) lsn: Option<Lsn>,
    /// Read the page from this file instead of the store.
    #[arg(long)]
    pub(crate) file: Option<Utf8PathBuf>,
}
