//! Arguments that several sub-commands have.

use camino::Utf8PathBuf;
use clap::Args;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use pageserver_api::reltag::{BlockNumber, RelTag};
use pageserver_api::shard::TenantShardId;
use utils::lsn::Lsn;

use crate::target::TimelineRef;

/// Where the store is and how it is used.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Directory of the store.
    #[arg(long, global = true, default_value = ".")]
    pub(crate) workdir: Utf8PathBuf,
    /// Tenant, if there is more than one (32 hexadecimal digits).
    #[arg(long, global = true)]
    pub(crate) tenant: Option<TenantShardId>,
    /// Timeline, if there is more than one: its id (32 hexadecimal digits), or the name of its branch.
    #[arg(long, global = true, value_name = "ID|NAME")]
    pub(crate) timeline: Option<TimelineRef>,
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
