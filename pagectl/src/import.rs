//! `pagectl import`: makes a timeline of a data directory, or of a base backup in tar archives.

use anyhow::bail;
use camino::Utf8Path;
use datadir::DataDir;
use engine::tenant::list_timelines;
use pageserver_api::shard::TenantShardId;
use pgdata::import::{ImportStats, import};
use serde_json::json;
use utils::id::{TenantId, TimelineId};

use crate::store::Store;
use crate::target::TimelineRef;
use crate::{import_tars, output};

/// Runs the command.
pub(crate) async fn run(store: &Store, pgdata: &Utf8Path) -> anyhow::Result<()> {
    if store.common.timeline.is_none() && !list_timelines(store.conf).await?.is_empty() {
        bail!("{} holds a timeline already: name another workdir, or a new id with --timeline", store.common.workdir);
    }
    let tenant = store.common.tenant.unwrap_or_else(|| TenantShardId::unsharded(TenantId::generate()));
    let timeline = store.common.timeline.as_ref().map_or_else(|| Ok(TimelineId::generate()), TimelineRef::of_new)?;
    let bar = output::byte_bar(0);
    let mut progress = |stats: &ImportStats| {
        bar.set_length(stats.bytes);
        bar.set_position(stats.bytes);
        bar.set_message(format!("{} forks, {} layers", stats.forks, stats.layers));
    };
    let (imported, stats) = match import_tars::is_backup(pgdata) {
        true => import_tars::import(store, tenant, timeline, pgdata, &mut progress).await?,
        false => import(store.conf, tenant, timeline, &DataDir::open(pgdata)?, &mut progress, &store.ctx).await?,
    };
    let lsn = imported.origin().import_lsn;
    let is_backup = import_tars::is_backup(pgdata) || pgdata.join("backup_label").exists();
    imported.shutdown().await;
    bar.finish_and_clear();
    if is_backup {
        tracing::warn!(start = %lsn, "base backup: pages are right only from the backup's end on");
    }
    let ImportStats { forks, pages, slru_pages, bytes, layers } = stats;
    let result = json!({
        "tenant": tenant.to_string(), "timeline": timeline.to_string(), "lsn": lsn.to_string(), "forks": forks,
        "pages": pages, "slru_pages": slru_pages, "bytes": bytes, "layers": layers,
    });
    let summary = format!(
        "imported {pgdata} at LSN {lsn}: {forks} forks, {pages} pages, {slru_pages} SLRU pages, {bytes} bytes, \
         {layers} layers"
    );
    output::finish(store.common.json, &result, summary);
    Ok(())
}
