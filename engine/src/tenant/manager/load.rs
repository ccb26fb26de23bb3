//! Opens everything in a working directory, ancestors before their branches.

use std::collections::BTreeMap;

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::inventory::{Broken, Tenant, local_tenants, note_broken};
use super::open_tenant;
use crate::config::PageServerConf;
use crate::context::RequestContext;
use crate::tenant::timeline::{Manifest, Timeline, has_manifest};
use errors::StorageError;
use virtual_file::fs;

/// The tenants and timelines found.
#[derive(Default)]
pub(super) struct Loaded {
    pub(super) tenants: BTreeMap<TenantShardId, Tenant>,
    /// Timelines that could not be opened, and why.
    pub(super) broken: Broken,
}

pub(super) async fn load(conf: &'static PageServerConf, ctx: &RequestContext) -> Result<Loaded, StorageError> {
    let mut loaded = Loaded::default();
    if let Some(storage) = &conf.remote_storage {
        for (id, (tenant, broken)) in open_tenant::load(conf, storage).await? {
            loaded.tenants.extend(tenant.map(|tenant| (id, tenant)));
            loaded.broken.extend(broken);
        }
        return Ok(loaded);
    }
    for id in local_tenants(conf).await?.attached {
        let waiting = manifests(conf, id, &mut loaded).await?;
        open_in_order(conf, id, waiting, &mut loaded, ctx).await;
    }
    Ok(loaded)
}

/// A tenant's timelines with their ancestors. Directories without a manifest are remains of an unfinished import or
/// deletion, and are removed.
async fn manifests(
    conf: &'static PageServerConf,
    id: TenantShardId,
    loaded: &mut Loaded,
) -> Result<BTreeMap<TimelineId, Option<TimelineId>>, StorageError> {
    loaded.tenants.entry(id).or_default();
    let mut found = BTreeMap::new();
    for name in fs::list_dir_if_any(&conf.timelines_path(&id)).await? {
        let Ok(timeline_id) = name.parse::<TimelineId>() else { continue };
        let dir = conf.timeline_path(&id, &timeline_id);
        if !has_manifest(&dir).await? {
            tracing::info!("{dir}: removing what is left of an import or a deletion that did not end");
            fs::remove_tree(&dir).await?;
            continue;
        }
        match Manifest::load(&dir, id, timeline_id).await {
            Ok(manifest) => drop(found.insert(timeline_id, manifest.ancestor().map(|it| it.timeline_id))),
            Err(error) => note_broken(&mut loaded.broken, id, timeline_id, error.to_string()),
        }
    }
    Ok(found)
}

async fn open_in_order(
    conf: &'static PageServerConf,
    id: TenantShardId,
    mut waiting: BTreeMap<TimelineId, Option<TimelineId>>,
    loaded: &mut Loaded,
    ctx: &RequestContext,
) {
    let Loaded { tenants, broken } = loaded;
    let open = &mut tenants.entry(id).or_default().timelines;
    loop {
        let ready = waiting.iter().find(|(_, ancestor)| ancestor.is_none_or(|ancestor| open.contains_key(&ancestor)));
        let Some((timeline_id, ancestor)) = ready.map(|(timeline, ancestor)| (*timeline, *ancestor)) else { break };
        waiting.remove(&timeline_id);
        let ancestor = ancestor.and_then(|ancestor| open.get(&ancestor)).cloned();
        match Timeline::open_on(conf, id, timeline_id, ancestor.as_ref(), ctx).await {
            Ok(timeline) => drop(open.insert(timeline_id, timeline)),
            Err(error) => note_broken(broken, id, timeline_id, error.to_string()),
        }
    }
    for (timeline_id, ancestor) in waiting {
        let ancestor = ancestor.map_or_else(String::new, |ancestor| ancestor.to_string());
        note_broken(broken, id, timeline_id, format!("its ancestor {ancestor} is missing or could not be opened"));
    }
}
