//! Opens a tenant from disk and bucket: first takes a new generation, then decides the state of every timeline.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::inventory::{Broken, LocalTenants, Tenant, Timelines, local_tenants, note_broken};
use super::reconcile::locate;
use super::removal::remove_local;
use crate::config::{AttachOnStart, PageServerConf};
use crate::tenant::remote::{Holder, Own, Purpose, Taken, TenantRemote, remove_tenant};
use crate::tenant::timeline::{Opening, Timeline};
use errors::{ErrorKind, StorageError};
use remote_storage::{RemotePath, RemoteStorage, RequestClass};
use virtual_file::fs;

/// Maximum number of tenants attached concurrently.
const PARALLEL_TENANTS: usize = 16;
/// Maximum number of a tenant's timelines located or opened concurrently.
const PARALLEL_TIMELINES: usize = 32;

/// Maximum number of another server's tenants named in the log.
const FOREIGN_TOLD: usize = 10;
/// Pause between attempts at startup.
const START_PAUSE: Duration = Duration::from_secs(1);

/// An attached tenant; `None` if it was deleted, or another server was faster.
pub(super) type Attached = (Option<Tenant>, Broken);

/// The result of attaching a tenant at startup.
enum Loaded {
    Attached(Attached),
    /// It belongs to another server.
    Foreign(Holder),
}

/// Attaches all tenants that startup should attach.
///
/// # Errors
/// Those of the bucket, if it does not answer in time: without it nothing can be served, because the owners are
/// unknown.
pub(super) async fn load(
    conf: &'static PageServerConf,
    storage: &RemoteStorage,
) -> Result<Vec<(TenantShardId, Attached)>, StorageError> {
    let deadline = env::clock::now() + conf.remote_storage_start_timeout;
    let LocalTenants { attached, detached, .. } = local_tenants(conf).await?;
    let mut ids: BTreeSet<TenantShardId> = attached.into_iter().collect();
    let names = retry(conf, deadline, || list_tenants(storage.clone())).await?;
    if conf.attach_on_start != AttachOnStart::Local {
        ids.extend(names.iter().filter_map(|name| name.parse::<TenantShardId>().ok()));
    }
    ids.retain(|id| !detached.contains(id));
    let attaching: Vec<_> = ids.into_iter().map(|id| load_one(conf, storage.clone(), id, deadline)).collect();
    let mut attaching = futures_util::stream::iter(attaching).buffer_unordered(PARALLEL_TENANTS);
    let (mut found, mut foreign, mut failed) = (Vec::new(), BTreeMap::<Holder, Vec<TenantShardId>>::new(), None);
    while let Some((id, loaded)) = attaching.next().await {
        match loaded {
            Ok(Loaded::Attached(attached)) => found.push((id, attached)),
            Ok(Loaded::Foreign(holder)) => foreign.entry(holder).or_default().push(id),
            Err(error) => failed = Some(error),
        }
    }
    let Some(error) = failed else {
        tell_foreign(conf, storage, &foreign, found.is_empty());
        return Ok(found);
    };
    for timeline in found.into_iter().filter_map(|(_, (tenant, _))| tenant).flat_map(|tenant| tenant.timelines) {
        timeline.1.shutdown().await;
    }
    Err(error)
}

/// Logs which tenants were not attached, and how to take them over.
fn tell_foreign(
    conf: &PageServerConf,
    storage: &RemoteStorage,
    foreign: &BTreeMap<Holder, Vec<TenantShardId>>,
    has_none: bool,
) {
    for (Holder { server, host }, ids) in foreign {
        let first: Vec<String> = ids.iter().take(FOREIGN_TOLD).map(ToString::to_string).collect();
        let more = if ids.len() > first.len() { ", ..." } else { "" };
        let told = format!(
            "{} tenants in {} are not attached, since server {server} (on {host}) was their last owner, and this is \
             {}: {}{more}. If this server takes its place, because its disk or its machine is lost, start this one \
             with server_id = {server:?}. To take single ones over, set them AttachedSingle (docs/operations.md)",
            ids.len(),
            storage.url(),
            conf.server.id,
            first.join(", ")
        );
        match has_none {
            true => tracing::warn!("{told}"),
            false => tracing::info!("{told}"),
        }
    }
}

async fn list_tenants(storage: RemoteStorage) -> Result<Vec<String>, StorageError> {
    storage.list_dirs(RequestClass::Control, &RemotePath::tenants()).await
}

/// Retries until success, an error that waiting does not cure, or the deadline.
async fn retry<T, F: Future<Output = Result<T, StorageError>>>(
    conf: &PageServerConf,
    deadline: Instant,
    attempt: impl Fn() -> F,
) -> Result<T, StorageError> {
    let mut told = false;
    loop {
        let error = match attempt().await {
            Err(error) if error.kind() == ErrorKind::Retry => error,
            other => return other,
        };
        if env::clock::now() >= deadline {
            return Err(out_of_time(error, conf.remote_storage_start_timeout));
        }
        if !told {
            tracing::warn!("the bucket does not answer, will try again: {error}");
            told = true;
        }
        env::clock::sleep(START_PAUSE).await;
    }
}

fn out_of_time(error: StorageError, timeout: Duration) -> StorageError {
    match error {
        StorageError::Remote { operation, object, failure, reason } => {
            let reason = format!("gave up after {timeout:?} (remote_storage_start_timeout): {reason}");
            StorageError::Remote { operation, object, failure, reason }
        }
        other => other,
    }
}

/// Attaches one tenant. If its own objects are damaged, that does not prevent other tenants from being served.
async fn load_one(
    conf: &'static PageServerConf,
    storage: RemoteStorage,
    id: TenantShardId,
    deadline: Instant,
) -> (TenantShardId, Result<Loaded, StorageError>) {
    let purpose = if conf.attach_on_start == AttachOnStart::Own { Purpose::GoOn } else { Purpose::Attach };
    let attached = retry(conf, deadline, || attach(conf, storage.clone(), id, purpose)).await;
    let (broken, reason) = match attached {
        Err(error) if error.kind() == ErrorKind::Fenced => {
            tracing::error!(tenant = %id, "not attached: {error}");
            return (id, Ok(Loaded::Attached((None, Broken::default()))));
        }
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::Gone) => {
            tracing::error!(tenant = %id, "tenant cannot be attached: {error}");
            (all_broken(conf, id, &error).await, error.to_string())
        }
        other => return (id, other),
    };
    let tenant = Tenant { unattached: Some(reason), ..Tenant::default() };
    (id, broken.map(|broken| Loaded::Attached((Some(tenant), broken))))
}

async fn all_broken(conf: &PageServerConf, id: TenantShardId, error: &StorageError) -> Result<Broken, StorageError> {
    let mut broken = Broken::default();
    for timeline in local_timelines(conf, id).await? {
        note_broken(&mut broken, id, timeline, format!("the tenant cannot be attached: {error}"));
    }
    Ok(broken)
}

/// Takes a tenant over for `purpose`, and opens its timelines; `None` if it is another server's.
pub(super) async fn take_for(
    conf: &'static PageServerConf,
    storage: RemoteStorage,
    id: TenantShardId,
    purpose: Purpose,
) -> Result<Option<Attached>, StorageError> {
    match attach(conf, storage, id, purpose).await? {
        Loaded::Attached(attached) => Ok(Some(attached)),
        Loaded::Foreign(_) => Ok(None),
    }
}

/// Attaches a tenant and opens its timelines. One that cannot be opened does not prevent the others from being
/// served.
async fn attach(
    conf: &'static PageServerConf,
    storage: RemoteStorage,
    id: TenantShardId,
    purpose: Purpose,
) -> Result<Loaded, StorageError> {
    let (taken, remote) =
        TenantRemote::take(storage, id, purpose, &conf.server, Arc::clone(&conf.resources.lease)).await?;
    match taken {
        Taken::Mine => {}
        Taken::Foreign(holder) => return Ok(Loaded::Foreign(holder)),
        Taken::Deleted => {
            finish_deletion(conf, &remote).await?;
            return Ok(Loaded::Attached((None, Broken::default())));
        }
    }
    tracing::info!(tenant = %id, generation = remote.generation(), "tenant attached");
    let mut names: BTreeSet<TimelineId> = local_timelines(conf, id).await?.into_iter().collect();
    let listed = remote.storage().list_dirs(RequestClass::Control, &RemotePath::timelines(&id)).await?;
    names.extend(listed.iter().filter_map(|name| name.parse::<TimelineId>().ok()));
    let mut broken = Broken::default();
    let waiting = match locate_all(conf, &remote, names, Own::Impossible, &Timelines::new(), &mut broken).await {
        Err(damaged @ StorageError::DamagedChain { .. }) => {
            remote.refuse().await?;
            return Err(damaged);
        }
        waiting => waiting?,
    };
    // Another server may have taken the tenant over meanwhile, and removed objects that it has replaced. If there is
    // nothing to open, nothing can be missing.
    if !waiting.is_empty() {
        remote.check().await?;
    }
    let timelines = open_in_order(conf, id, waiting, &Timelines::new(), &mut broken).await;
    let tenant = Tenant { timelines, remote: Some(remote), ..Tenant::default() };
    Ok(Loaded::Attached((Some(tenant), broken)))
}

/// Decides the state of the timelines `names` and of their ancestors, which a lagging listing may lack. `open` are
/// open already.
async fn locate_all(
    conf: &'static PageServerConf,
    remote: &Arc<TenantRemote>,
    mut names: BTreeSet<TimelineId>,
    own: Own,
    open: &Timelines,
    broken: &mut Broken,
) -> Result<BTreeMap<TimelineId, Opening>, StorageError> {
    let (mut seen, mut waiting) = (BTreeSet::new(), BTreeMap::<TimelineId, Opening>::new());
    while !names.is_empty() {
        seen.extend(names.iter().copied());
        let looking: Vec<_> =
            names.into_iter().map(|timeline| locate(conf, Arc::clone(remote), timeline, own)).collect();
        let mut looking = futures_util::stream::iter(looking).buffer_unordered(PARALLEL_TIMELINES);
        while let Some((timeline, located)) = looking.next().await {
            match located {
                Ok(Some(opening)) => drop(waiting.insert(timeline, opening)),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Retry => return Err(error),
                // These concern the tenant as a whole.
                Err(error @ (StorageError::DamagedChain { .. } | StorageError::Fenced { .. })) => return Err(error),
                Err(error) => note_broken(broken, remote.tenant_shard_id(), timeline, error.to_string()),
            }
        }
        let ancestors = waiting.values().filter_map(|it| it.manifest.ancestor().map(|it| it.timeline_id));
        names = ancestors.filter(|id| !seen.contains(id) && !open.contains_key(id)).collect();
    }
    Ok(waiting)
}

/// Lists the timelines of an attached tenant again, and opens those that the listing lacked when it was attached.
/// `open` are those already open.
pub(super) async fn look_again(
    conf: &'static PageServerConf,
    remote: &Arc<TenantRemote>,
    open: &Timelines,
) -> Result<(Timelines, Broken), StorageError> {
    let id = remote.tenant_shard_id();
    let listed = remote.storage().list_dirs(RequestClass::Control, &RemotePath::timelines(&id)).await?;
    // A timeline with a local directory was looked at before, or is being created.
    let known: BTreeSet<TimelineId> = local_timelines(conf, id).await?.into_iter().collect();
    let mut names = BTreeSet::new();
    for timeline in listed.iter().filter_map(|name| name.parse::<TimelineId>().ok()) {
        let own = RemotePath::index_part(&id, &timeline, remote.generation());
        let is_new = !known.contains(&timeline) && !open.contains_key(&timeline);
        // A timeline that this server deleted has an index part of our own generation: the mark of deletion.
        if is_new && remote.storage().head(RequestClass::Control, &own).await?.is_none() {
            names.insert(timeline);
        }
    }
    if names.is_empty() {
        return Ok((Timelines::new(), Broken::new()));
    }
    open_more(conf, remote, names, Own::Ignored, open).await
}

/// Opens timelines of an attached tenant that are not open yet.
pub(super) async fn open_more(
    conf: &'static PageServerConf,
    remote: &Arc<TenantRemote>,
    names: BTreeSet<TimelineId>,
    own: Own,
    open: &Timelines,
) -> Result<(Timelines, Broken), StorageError> {
    let mut broken = Broken::default();
    let waiting = locate_all(conf, remote, names, own, open, &mut broken).await?;
    remote.check().await?;
    let mut all = open_in_order(conf, remote.tenant_shard_id(), waiting, open, &mut broken).await;
    all.retain(|timeline, _| !open.contains_key(timeline));
    Ok((all, broken))
}

/// Opens `waiting`, each timeline after its ancestor, which may be among `open`. The result includes `open`.
async fn open_in_order(
    conf: &'static PageServerConf,
    id: TenantShardId,
    mut waiting: BTreeMap<TimelineId, Opening>,
    open: &Timelines,
    broken: &mut Broken,
) -> Timelines {
    let mut open = open.clone();
    loop {
        let ancestor_of = |opening: &Opening| opening.manifest.ancestor().map(|ancestor| ancestor.timeline_id);
        let is_ready = |opening: &Opening| ancestor_of(opening).is_none_or(|ancestor| open.contains_key(&ancestor));
        let ready: Vec<TimelineId> =
            waiting.iter().filter(|(_, opening)| is_ready(opening)).map(|(timeline, _)| *timeline).collect();
        if ready.is_empty() {
            break;
        }
        let opening: Vec<_> = ready
            .into_iter()
            .filter_map(|timeline| {
                let opening = waiting.remove(&timeline)?;
                let ancestor = ancestor_of(&opening).and_then(|ancestor| open.get(&ancestor)).cloned();
                Some(open_one(conf, timeline, opening, ancestor))
            })
            .collect();
        let mut opening = futures_util::stream::iter(opening).buffer_unordered(PARALLEL_TIMELINES);
        while let Some((timeline, opened)) = opening.next().await {
            match opened {
                Ok(opened) => drop(open.insert(timeline, opened)),
                Err(error) => note_broken(broken, id, timeline, error.to_string()),
            }
        }
    }
    for (timeline, opening) in waiting {
        let ancestor = opening.manifest.ancestor().map_or_else(String::new, |it| it.timeline_id.to_string());
        note_broken(broken, id, timeline, format!("its ancestor {ancestor} is missing or could not be opened"));
    }
    open
}

async fn open_one(
    conf: &'static PageServerConf,
    timeline: TimelineId,
    opening: Opening,
    ancestor: Option<Timeline>,
) -> (TimelineId, Result<Timeline, StorageError>) {
    (timeline, Timeline::open_with(conf, opening, ancestor.as_ref()).await)
}

/// Removes the remains of a deleted tenant.
async fn finish_deletion(conf: &'static PageServerConf, remote: &TenantRemote) -> Result<(), StorageError> {
    let id = remote.tenant_shard_id();
    for timeline in local_timelines(conf, id).await? {
        remove_local(&conf.timeline_path(&id, &timeline)).await?;
    }
    fs::remove_tree(&conf.tenant_path(&id)).await?;
    let removed = remove_tenant(remote, id, remote.generation()).await?;
    if removed > 0 {
        tracing::info!(tenant = %id, "its deletion is finished, {removed} objects were left");
    }
    Ok(())
}

async fn local_timelines(conf: &PageServerConf, id: TenantShardId) -> Result<Vec<TimelineId>, StorageError> {
    let names = fs::list_dir_if_any(&conf.timelines_path(&id)).await?;
    Ok(names.iter().filter_map(|name| name.parse().ok()).collect())
}
