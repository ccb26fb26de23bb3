//! Opening of a tenant as disk and bucket together say: a new generation first, then what every timeline is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::Utf8PathBuf;
use futures_util::StreamExt;
use pageserver_api::shard::TenantShardId;
use tokio::sync::Semaphore;
use utils::id::TimelineId;

use super::load::{local_tenants, note_broken};
use super::{Broken, Tenant, Timelines};
use crate::config::{AttachOnStart, PageServerConf};
use crate::errors::{ErrorKind, StorageError};
use crate::remote_storage::{RemotePath, RemoteStorage, RequestClass};
use crate::tenant::remote::{
    Decision, IndexPart, Purpose, Taken, TenantRemote, decide, newest_index_part, remove_tenant, remove_timeline,
};
use crate::tenant::timeline::{MANIFEST_NAME, Manifest, Opening, Timeline, has_manifest};
use crate::virtual_file::fs;

/// Tenants that are attached at once.
const PARALLEL_TENANTS: usize = 16;
/// Timelines of a tenant that are looked at, or opened, at once.
const PARALLEL_TIMELINES: usize = 32;

/// Deleted timelines whose objects are removed at once.
const PARALLEL_REMOVALS: usize = 4;
/// After attempts to remove them that failed.
const REMOVAL_PAUSES: [Duration; 4] =
    [Duration::from_secs(1), Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(60)];
/// Between attempts at start.
const START_PAUSE: Duration = Duration::from_secs(1);

/// A tenant that was attached; `None` if it was deleted, or another server was faster.
pub(super) type Attached = (Option<Tenant>, Broken);

/// Attaches all tenants that a start attaches.
///
/// # Errors
/// Those of the store, if it does not answer in time: without it nothing is served, as nobody knows who owns what.
pub(super) async fn load(
    conf: &'static PageServerConf,
    storage: &RemoteStorage,
) -> Result<Vec<(TenantShardId, Attached)>, StorageError> {
    let deadline = env::clock::now() + conf.remote_storage_start_timeout;
    let (attached, detached) = local_tenants(conf).await?;
    let mut ids: BTreeSet<TenantShardId> = attached.into_iter().collect();
    let names = retry(conf, deadline, || list_tenants(storage.clone())).await?;
    if conf.attach_on_start == AttachOnStart::All {
        ids.extend(names.iter().filter_map(|name| name.parse::<TenantShardId>().ok()));
    }
    ids.retain(|id| !detached.contains(id));
    let attaching: Vec<_> = ids.into_iter().map(|id| load_one(conf, storage.clone(), id, deadline)).collect();
    let mut attaching = futures_util::stream::iter(attaching).buffer_unordered(PARALLEL_TENANTS);
    let (mut found, mut failed) = (Vec::new(), None);
    while let Some((id, attached)) = attaching.next().await {
        match attached {
            Ok(attached) => found.push((id, attached)),
            Err(error) => failed = Some(error),
        }
    }
    let Some(error) = failed else { return Ok(found) };
    for timeline in found.into_iter().filter_map(|(_, (tenant, _))| tenant).flat_map(|tenant| tenant.timelines) {
        timeline.1.shutdown().await;
    }
    Err(error)
}

async fn list_tenants(storage: RemoteStorage) -> Result<Vec<String>, StorageError> {
    storage.list_dirs(RequestClass::Control, &RemotePath::tenants()).await
}

/// Tries until it works, does not get better by waiting, or the deadline is over.
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
            tracing::warn!("object storage does not answer, will try again: {error}");
            told = true;
        }
        tokio::time::sleep(START_PAUSE).await;
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

/// A tenant whose own objects are damaged does not keep the others from serving.
async fn load_one(
    conf: &'static PageServerConf,
    storage: RemoteStorage,
    id: TenantShardId,
    deadline: Instant,
) -> (TenantShardId, Result<Attached, StorageError>) {
    let attached = retry(conf, deadline, || attach(conf, storage.clone(), id, Purpose::Attach)).await;
    let broken = match attached {
        Err(error) if error.kind() == ErrorKind::Fenced => {
            tracing::error!(tenant = %id, "not attached: {error}");
            return (id, Ok((None, Broken::default())));
        }
        Err(error) if matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Invalid | ErrorKind::Gone) => {
            tracing::error!(tenant = %id, "tenant cannot be attached: {error}");
            all_broken(conf, id, &error).await
        }
        other => return (id, other),
    };
    (id, broken.map(|broken| (Some(Tenant::default()), broken)))
}

async fn all_broken(conf: &PageServerConf, id: TenantShardId, error: &StorageError) -> Result<Broken, StorageError> {
    let mut broken = Broken::default();
    for timeline in local_timelines(conf, id).await? {
        note_broken(&mut broken, id, timeline, format!("the tenant cannot be attached: {error}"));
    }
    Ok(broken)
}

/// Takes a tenant over, and opens its timelines. One that cannot be opened does not keep the others from serving.
pub(super) async fn attach(
    conf: &'static PageServerConf,
    storage: RemoteStorage,
    id: TenantShardId,
    purpose: Purpose,
) -> Result<Attached, StorageError> {
    let (taken, remote) = TenantRemote::take(storage, id, purpose).await?;
    if taken == Taken::Deleted {
        finish_deletion(conf, &remote).await?;
        return Ok((None, Broken::default()));
    }
    tracing::info!(tenant = %id, generation = remote.generation(), "tenant attached");
    let mut names: BTreeSet<TimelineId> = local_timelines(conf, id).await?.into_iter().collect();
    let listed = remote.storage().list_dirs(RequestClass::Control, &RemotePath::timelines(&id)).await?;
    names.extend(listed.iter().filter_map(|name| name.parse::<TimelineId>().ok()));
    let mut broken = Broken::default();
    let waiting = locate_all(conf, &remote, names, &Timelines::new(), &mut broken).await?;
    // Another one may have taken it over meanwhile, and removed what it has written anew.
    remote.check().await?;
    let timelines = open_in_order(conf, id, waiting, &Timelines::new(), &mut broken).await;
    Ok((Some(Tenant { timelines, remote: Some(remote) }), broken))
}

/// Decides what all of `names` are, and their ancestors: a list that is behind may lack these. `open` are there.
async fn locate_all(
    conf: &'static PageServerConf,
    remote: &Arc<TenantRemote>,
    mut names: BTreeSet<TimelineId>,
    open: &Timelines,
    broken: &mut Broken,
) -> Result<BTreeMap<TimelineId, Opening>, StorageError> {
    let (mut seen, mut waiting) = (BTreeSet::new(), BTreeMap::<TimelineId, Opening>::new());
    while !names.is_empty() {
        seen.extend(names.iter().copied());
        let looking: Vec<_> = names.into_iter().map(|timeline| locate(conf, Arc::clone(remote), timeline)).collect();
        let mut looking = futures_util::stream::iter(looking).buffer_unordered(PARALLEL_TIMELINES);
        while let Some((timeline, located)) = looking.next().await {
            match located {
                Ok(Some(opening)) => drop(waiting.insert(timeline, opening)),
                Ok(None) => {}
                Err(error) if error.kind() == ErrorKind::Retry => return Err(error),
                Err(error) => note_broken(broken, remote.tenant_shard_id(), timeline, error.to_string()),
            }
        }
        let ancestors = waiting.values().filter_map(|it| it.manifest.origin.ancestor.map(|it| it.timeline_id));
        names = ancestors.filter(|id| !seen.contains(id) && !open.contains_key(id)).collect();
    }
    Ok(waiting)
}

/// Lists the timelines of an attached tenant once more, and opens those that the list did not name when it was
/// attached. `open` are those that are open by now.
pub(super) async fn look_again(
    conf: &'static PageServerConf,
    remote: &Arc<TenantRemote>,
    open: &Timelines,
) -> Result<(Timelines, Broken), StorageError> {
    let (id, mut broken) = (remote.tenant_shard_id(), Broken::default());
    let listed = remote.storage().list_dirs(RequestClass::Control, &RemotePath::timelines(&id)).await?;
    // What has a directory was looked at, or is being made.
    let known: BTreeSet<TimelineId> = local_timelines(conf, id).await?.into_iter().collect();
    let mut names = BTreeSet::new();
    for timeline in listed.iter().filter_map(|name| name.parse::<TimelineId>().ok()) {
        let own = RemotePath::index_part(&id, &timeline, remote.generation());
        let is_new = !known.contains(&timeline) && !open.contains_key(&timeline);
        // What we have deleted ourselves has our mark.
        if is_new && remote.storage().head(RequestClass::Control, &own).await?.is_none() {
            names.insert(timeline);
        }
    }
    if names.is_empty() {
        return Ok((Timelines::new(), broken));
    }
    let waiting = locate_all(conf, remote, names, open, &mut broken).await?;
    remote.check().await?;
    let mut all = open_in_order(conf, id, waiting, open, &mut broken).await;
    all.retain(|timeline, _| !open.contains_key(timeline));
    Ok((all, broken))
}

/// Decides what a timeline is; `None` if there is none.
async fn locate(
    conf: &'static PageServerConf,
    remote: Arc<TenantRemote>,
    id: TimelineId,
) -> (TimelineId, Result<Option<Opening>, StorageError>) {
    (id, locate_inner(conf, remote, id).await)
}

async fn locate_inner(
    conf: &'static PageServerConf,
    remote: Arc<TenantRemote>,
    id: TimelineId,
) -> Result<Option<Opening>, StorageError> {
    let tenant = remote.tenant_shard_id();
    let dir = conf.timeline_path(&tenant, &id);
    let found = newest_index_part(&remote, id).await?;
    let local = match has_manifest(&dir).await? {
        true => Some(Manifest::load(&dir, tenant, id).await),
        false => None,
    };
    let index = found.as_ref().map(|found| &found.manifest);
    let local = match (local, index) {
        (Some(Err(error)), Some(index)) if error.kind() == ErrorKind::Corrupt && !index.deleted => {
            tracing::warn!(timeline = %id, "{error}: what the bucket has is taken instead");
            None
        }
        (Some(local), _) => Some(local?),
        (None, _) => {
            fs::remove_tree(&dir).await?;
            None
        }
    };
    let opening = |manifest, from_bucket, found: Option<IndexPart>| {
        let found = found.filter(|found| !found.manifest.deleted);
        Ok(Some(Opening { manifest, from_bucket, found, remote: Arc::clone(&remote) }))
    };
    match decide(local, index, remote.storage().url()) {
        Decision::Nothing => Ok(None),
        Decision::Local(manifest) => opening(manifest, false, found),
        Decision::Bucket(manifest) => opening(manifest, true, found),
        Decision::Refused(reason) => Err(StorageError::Invalid(reason)),
        Decision::Deleted => {
            tracing::info!(tenant = %tenant, timeline = %id, "going on with its deletion");
            remove_local(&dir).await?;
            if let Some(IndexPart { manifest, modified, .. }) = found {
                // Beside everything else: marks stay for a day, and whoever has many branches shall not wait for them.
                drop(env::spawn::task("removal of a timeline", remove_left(remote, id, manifest.generation, modified)));
            }
            Ok(None)
        }
    }
}

/// Removes what is left of a deleted timeline; a few at a time, and again if the store does not answer.
async fn remove_left(remote: Arc<TenantRemote>, id: TimelineId, mark: u32, marked: i64) {
    static TURNS: Semaphore = Semaphore::const_new(PARALLEL_REMOVALS);
    for pause in REMOVAL_PAUSES {
        let Ok(turn) = TURNS.acquire().await else { return };
        match remove_timeline(&remote, id, mark, marked).await {
            Ok(()) => return,
            Err(error) if error.kind() != ErrorKind::Retry => {
                return tracing::warn!(timeline = %id, "objects of it are left: {error}");
            }
            Err(error) => tracing::info!(timeline = %id, "objects of it are left, will try again: {error}"),
        }
        drop(turn);
        tokio::time::sleep(pause).await;
    }
    tracing::warn!(timeline = %id, "objects of it are left, a later start removes them");
}

/// Opens all, each after its ancestor, which may be open already. Gives these, too.
async fn open_in_order(
    conf: &'static PageServerConf,
    id: TenantShardId,
    mut waiting: BTreeMap<TimelineId, Opening>,
    open: &Timelines,
    broken: &mut Broken,
) -> Timelines {
    let mut open = open.clone();
    loop {
        let ancestor_of = |opening: &Opening| opening.manifest.origin.ancestor.map(|ancestor| ancestor.timeline_id);
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
        let ancestor = opening.manifest.origin.ancestor.map_or_else(String::new, |it| it.timeline_id.to_string());
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

/// Of a tenant that was deleted, removes what is left.
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

/// Removes the directory of a timeline that is closed.
pub(super) async fn remove_local(dir: &Utf8PathBuf) -> Result<(), StorageError> {
    if has_manifest(dir).await? {
        // From here on it is gone, even if the process ends before its files are.
        fs::unlink(&dir.join(MANIFEST_NAME)).await?;
        fs::fsync_dir(dir).await?;
    }
    fs::remove_tree(dir).await
}
