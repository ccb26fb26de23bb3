//! The store that a command works on.

use anyhow::{Context, bail};
use camino::Utf8Path;
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::list_timelines;
use engine::tenant::timeline::Timeline;
use pageserver::settings::{FILE_NAME, Overrides, Settings};
use pageserver::walreceiver::branch_name;
use pageserver_api::reltag::RelTag;
use pageserver_api::shard::TenantShardId;
use pgdata::TimelineStore;
use pgdata::listing::Listing;
use remote_storage::RemoteStorage;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use virtual_file::{self, SyncMode};

use crate::args::Common;
use crate::target::{Found, TimelineRef, choose};

/// Maximum number of open files.
const MAX_OPEN_FILES: usize = 4096;

/// A store, not yet opened.
pub(crate) struct Store {
    pub(crate) common: Common,
    pub(crate) conf: &'static PageServerConf,
    pub(crate) ctx: RequestContext,
}

/// The store's timeline, opened.
pub(crate) type Opened = TimelineStore;

impl Store {
    /// Initializes the process for `common`. `checkpoint_distance` is the size of in-memory layers in bytes.
    ///
    /// # Errors
    /// If the settings in the working directory are wrong, or the bucket that they name cannot be opened.
    pub(crate) async fn new(common: Common, checkpoint_distance: Option<u64>) -> anyhow::Result<Self> {
        let engine = common.io_engine.unwrap_or_else(virtual_file::io_engine_for_bench);
        virtual_file::init(MAX_OPEN_FILES, engine, common.io_mode, SyncMode::Sync);
        let mut conf = PageServerConf::dummy_conf(common.workdir.clone());
        conf.virtual_file_io_mode = common.io_mode;
        conf.virtual_file_io_engine = Some(engine);
        conf.checkpoint_distance = checkpoint_distance.unwrap_or(conf.checkpoint_distance);
        if let Some(settings) = settings(&common.workdir)? {
            let store = settings.store(&common.workdir).map_err(anyhow::Error::msg)?;
            let opened = RemoteStorage::open(&store).await;
            conf.remote_storage = opened.context("cannot open the bucket (remote_storage)")?;
            conf.server = settings.known_identity(&camino::absolute_utf8(&common.workdir)?).await?;
        }
        // Leaked once per process; it lives as long as the process.
        let conf = Box::leak(Box::new(conf));
        let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
        Ok(Self { common, conf, ctx })
    }

    /// Opens the timeline named by the arguments, or the only one.
    pub(crate) async fn open(&self) -> anyhow::Result<Opened> {
        let (tenant, timeline) = self.target().await?;
        let opened = Timeline::open(self.conf, tenant, timeline, &self.ctx).await;
        let timeline = opened.with_context(|| format!("cannot open the store in {}", self.common.workdir))?;
        Ok(TimelineStore::new(timeline, self.ctx.clone()))
    }

    async fn target(&self) -> anyhow::Result<(TenantShardId, TimelineId)> {
        let Common { tenant, timeline, workdir, .. } = &self.common;
        if let (Some(tenant), Some(TimelineRef::Id(timeline))) = (tenant, timeline) {
            return Ok((*tenant, *timeline));
        }
        let mut all = Vec::new();
        for (tenant, id) in list_timelines(self.conf).await? {
            let name = branch_name(&self.conf.timeline_path(&tenant, &id), tenant, id).await?;
            all.push(Found { tenant, id, name });
        }
        let found = choose(all, *tenant, timeline.as_ref(), workdir.as_str())?;
        Ok((found.tenant, found.id))
    }
}

/// The settings of the pageserver whose working directory this is, if any: its bucket has the data that the directory
/// lacks.
pub(crate) fn settings(workdir: &Utf8Path) -> anyhow::Result<Option<Settings>> {
    if !workdir.join(FILE_NAME).exists() {
        return Ok(None);
    }
    Ok(Some(Settings::load(workdir, &Overrides::from_environment())?.0))
}

/// The requested LSN, or the last one. It must lie within the timeline's history.
pub(crate) fn lsn_to_read(opened: &Opened, asked: Option<Lsn>) -> anyhow::Result<Lsn> {
    let info = opened.timeline().info();
    let lsn = asked.unwrap_or(info.last_record_lsn);
    if lsn < info.import_lsn {
        bail!("LSN {lsn} is before the import: history begins at {}", info.import_lsn);
    }
    if lsn > info.last_record_lsn {
        bail!("LSN {lsn} is in the future: history ends at {}", info.last_record_lsn);
    }
    Ok(lsn)
}

/// Looks up a relation given with its tablespace's OID, and its size. The relation must exist at `lsn`.
pub(crate) async fn find_relation(opened: &Opened, rel: RelTag, lsn: Lsn) -> anyhow::Result<(RelTag, u32)> {
    let listing = Listing::new(opened, lsn);
    let spcnode = listing.tablespaces().await?.number(rel.spcnode)?;
    let found = RelTag { spcnode, ..rel };
    match listing.rel_size(found).await? {
        Some(size) => Ok((found, size)),
        None => bail!("relation {rel} does not exist at LSN {lsn}"),
    }
}
