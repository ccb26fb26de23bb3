//! Keeps hot layers warm across restarts and moves: a tenant's hot layers are recorded periodically, here and in the
//! bucket. When the tenant is opened where they are not resident, they are downloaded in the background, as far as
//! there is room.
//!
//! The list is a hint. Losing it costs no more than a cold start, so it is written rarely: to the local disk at most
//! once a minute, to the bucket at most once an hour and at shutdown, and only if something was read since. Standbys
//! read it there, and have hot layers on their disks before they take over ([`ahead`]).

pub(crate) mod ahead;
mod hot_list;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use camino::{Utf8Path, Utf8PathBuf};
use futures_util::StreamExt;
use pageserver_api::shard::TenantShardId;
use tokio_util::sync::CancellationToken;

use crate::config::PageServerConf;
use crate::context::{DownloadBehavior, RequestContext};
use crate::task_mgr::TaskKind;
use crate::tenant::layer_map::Layer;
use crate::tenant::remote::TenantRemote;
use crate::tenant::timeline::Timeline;
use errors::{ErrorKind, StorageError};
use hot_list::MAX_LEN;
pub use hot_list::{HotList, Named};
use remote_storage::{RemotePath, RemoteStorage, RequestClass};

/// Name of the hot list in a tenant's directory.
pub(crate) const HOT_LAYERS_NAME: &str = "hot-layers";
/// How often reads are counted.
const PERIOD: Duration = Duration::from_secs(10);
/// Minimum interval between two writes of the local file.
const STORE_PERIOD: Duration = Duration::from_secs(60);
/// Minimum interval between two writes of the object.
const UPLOAD_PERIOD: Duration = Duration::from_secs(3600);
/// The same where standbys read it, and how often these do.
const FOLLOWED_PERIOD: Duration = Duration::from_secs(300);
/// Layers of one tenant downloaded concurrently.
const PARALLEL: usize = 2;
/// How long one write to the bucket may take.
const LAST_UPLOAD: Duration = Duration::from_secs(3);
/// How long warming waits for the first measurement of the disk.
const MEASURE_WAIT: Duration = Duration::from_secs(5);

/// An open tenant.
pub(crate) struct Open {
    pub(crate) tenant: TenantShardId,
    pub(crate) timelines: Vec<Timeline>,
    pub(crate) remote: Option<Arc<TenantRemote>>,
}

/// Maintains the hot lists of all tenants returned by `open` until `cancel`; then writes them once more.
/// Has those on this disk that are hot at the owners of `standbys`.
pub(crate) async fn keep(
    conf: &'static PageServerConf,
    open: impl Fn() -> Vec<Open>,
    standbys: impl Fn() -> Vec<TenantShardId> + Clone + Send + Sync + 'static,
    cancel: CancellationToken,
) {
    let mut tenants: HashMap<TenantShardId, Heat> = HashMap::new();
    env::spawn::task("hot layers of other servers", keep_ahead(conf, standbys, cancel.clone()));
    let mut ticks = env::clock::interval(PERIOD);
    loop {
        let last = tokio::select! {
            _ = ticks.tick() => false,
            () = cancel.cancelled() => true,
        };
        let all = open();
        let mut bucket_answers = true;
        tenants.retain(|tenant, _| all.iter().any(|open| open.tenant == *tenant));
        for open in all {
            match tenants.get_mut(&open.tenant) {
                None if last => {}
                None => {
                    let heat = tokio::select! {
                        heat = Heat::load(conf, &open) => heat,
                        () = cancel.cancelled() => continue,
                    };
                    env::spawn::task("warming of a tenant", warm(conf, heat.list.clone(), open, cancel.clone()));
                    tenants.insert(heat.tenant, heat);
                }
                Some(heat) => {
                    heat.observe(&open);
                    heat.write_here(conf, last).await;
                    // At shutdown, give up on the bucket after the first failure.
                    bucket_answers = (bucket_answers || !last) && heat.write_there(conf, &open, last).await;
                }
            }
        }
        if last {
            return;
        }
    }
}

/// Has hot layers of other servers' tenants here, before this server takes their place.
async fn keep_ahead(
    conf: &'static PageServerConf,
    standbys: impl Fn() -> Vec<TenantShardId>,
    cancel: CancellationToken,
) {
    let Some(storage) = &conf.remote_storage else { return };
    let mut looked = HashMap::<TenantShardId, Instant>::new();
    loop {
        tokio::select! {
            () = env::clock::sleep(PERIOD) => {}
            () = cancel.cancelled() => return,
        }
        let all = standbys();
        looked.retain(|tenant, _| all.contains(tenant));
        for tenant in all {
            let now = env::clock::now();
            if looked.get(&tenant).is_some_and(|at| now.saturating_duration_since(*at) < FOLLOWED_PERIOD) {
                continue;
            }
            looked.insert(tenant, now);
            let keeping = ahead::keep(conf, storage, tenant, || standbys().contains(&tenant));
            tokio::select! {
                kept = keeping => match kept {
                    Ok(0) => {}
                    Ok(count) => tracing::info!(%tenant, count, "layers that are hot at its owner are here as well"),
                    Err(error) => tracing::info!(%tenant, "what is hot at its owner is not here: {error}"),
                },
                () = cancel.cancelled() => return,
            }
        }
    }
}

/// A tenant's hot list, and how much of it has been written.
struct Heat {
    tenant: TenantShardId,
    list: HotList,
    /// Number of accesses to each layer already counted in the list.
    counted: HashMap<Named, u64>,
    observed: Instant,
    /// Reads have occurred that the local file (`unstored`) or the object (`unsent`) does not reflect.
    unstored: bool,
    unsent: bool,
    stored: Instant,
    sent: Instant,
}

impl Heat {
    async fn load(conf: &PageServerConf, open: &Open) -> Self {
        let list = load(conf, open).await.unwrap_or_else(|error| {
            tracing::info!(tenant = %open.tenant, "it is not known what was hot: {error}");
            HotList::default()
        });
        restore_order(&list, layers(open));
        let now = env::clock::now();
        let counted = layers(open).map(|(named, layer)| (named, layer.accesses())).collect();
        let tenant = open.tenant;
        Self { tenant, list, counted, observed: now, unstored: false, unsent: false, stored: now, sent: now }
    }

    /// Counts the reads since the last call.
    fn observe(&mut self, open: &Open) {
        let now = env::clock::now();
        self.list.fade(now.saturating_duration_since(self.observed));
        self.observed = now;
        let mut counted = HashMap::with_capacity(self.counted.len());
        for (named, layer) in layers(open) {
            let accesses = layer.accesses();
            // Creating a layer counts as one access.
            let before = self.counted.get(&named).copied().unwrap_or(1);
            let reads = accesses.saturating_sub(before);
            if reads > 0 {
                self.list.note(named.clone(), reads);
                (self.unstored, self.unsent) = (true, true);
            }
            counted.insert(named, accesses);
        }
        self.list.retain(|named| counted.contains_key(named));
        self.counted = counted;
    }

    /// Writes the local file if due.
    async fn write_here(&mut self, conf: &PageServerConf, last: bool) {
        if !self.unstored || !is_due(&mut self.stored, STORE_PERIOD, last) {
            return;
        }
        match self.store(conf).await {
            Ok(()) => self.unstored = false,
            Err(error) => tracing::info!(tenant = %self.tenant, "hot layers are not noted: {error}"),
        }
    }

    /// Writes the object if due. Returns false if the bucket did not take it.
    async fn write_there(&mut self, conf: &PageServerConf, open: &Open, last: bool) -> bool {
        let Some(remote) = open.remote.as_ref().filter(|remote| remote.fenced().is_none()) else { return true };
        let period = if conf.resources.lease.is_bound() { FOLLOWED_PERIOD } else { UPLOAD_PERIOD };
        if !self.unsent || !is_due(&mut self.sent, period, last) {
            return true;
        }
        let sent = self.send(remote.storage()).await;
        match &sent {
            Ok(()) => self.unsent = false,
            Err(error) => tracing::info!(tenant = %self.tenant, "hot layers are not noted in the bucket: {error}"),
        }
        sent.is_ok()
    }

    async fn store(&self, conf: &PageServerConf) -> Result<(), StorageError> {
        virtual_file::write_file_durably(&path(conf, self.tenant), &self.list.encode()?).await
    }

    async fn send(&self, storage: &RemoteStorage) -> Result<(), StorageError> {
        let (object, bytes) = (RemotePath::hot_layers(&self.tenant), self.list.encode()?.into());
        let put = env::clock::timeout(LAST_UPLOAD, storage.put(RequestClass::Control, &object, bytes)).await;
        put.unwrap_or_else(|_| Err(StorageError::Invalid(format!("not answered within {LAST_UPLOAD:?}"))))
    }
}

/// Whether `period` has elapsed since `since`, or `last` is set; if so, restarts the period.
fn is_due(since: &mut Instant, period: Duration, last: bool) -> bool {
    let now = env::clock::now();
    let is_due = last || now.saturating_duration_since(*since) >= period;
    if is_due {
        *since = now;
    }
    is_due
}

/// The path of the hot list on the local disk.
pub(crate) fn path(conf: &PageServerConf, tenant: TenantShardId) -> Utf8PathBuf {
    conf.tenant_path(&tenant).join(HOT_LAYERS_NAME)
}

/// Loads the list from the local disk, or else from the bucket.
async fn load(conf: &PageServerConf, open: &Open) -> Result<HotList, StorageError> {
    let path = path(conf, open.tenant);
    match virtual_file::read_file(&path).await {
        Ok(bytes) => return HotList::decode(&path, &bytes),
        Err(error) if error.kind() == ErrorKind::Gone => {}
        Err(error) => return Err(error),
    }
    // A tenant without layers has no hot ones.
    let Some(remote) = open.remote.as_ref().filter(|_| layers(open).next().is_some()) else {
        return Ok(HotList::default());
    };
    let object = RemotePath::hot_layers(&open.tenant);
    match remote.storage().get(RequestClass::Control, &object, MAX_LEN).await {
        Ok(bytes) => HotList::decode(Utf8Path::new(&remote.storage().name_of(&object)), &bytes),
        Err(error) if error.kind() == ErrorKind::Gone => Ok(HotList::default()),
        Err(error) => Err(error),
    }
}

/// When opened, all local layers look as if they had just been read. Makes the hot ones more recent than all others,
/// the hottest last, so that eviction takes the others first.
fn restore_order(list: &HotList, layers: impl Iterator<Item = (Named, Arc<Layer>)>) {
    let by_name: HashMap<Named, Arc<Layer>> = layers.collect();
    let hottest_first = list.hottest_first();
    for (rank, named) in hottest_first.iter().enumerate() {
        let colder = hottest_first.len() - rank;
        if let Some(layer) = by_name.get(named).filter(|layer| layer.is_local()) {
            // Within a second from now, so that reads from here on soon count as much.
            layer.restore_access((colder * 1000 / hottest_first.len()).max(1) as u64);
        }
    }
}

fn layers(open: &Open) -> impl Iterator<Item = (Named, Arc<Layer>)> + '_ {
    open.timelines.iter().flat_map(|timeline| {
        let id = timeline.timeline_id();
        let files = timeline.layer_files().into_iter();
        files.filter_map(move |layer| Some(((id, layer.path().file_name()?.to_owned()), layer)))
    })
}

/// Downloads hot layers that are not resident, hottest first, while there is room.
async fn warm(conf: &'static PageServerConf, list: HotList, open: Open, cancel: CancellationToken) {
    let tenant = open.tenant;
    // Those of archived timelines would be the first to be evicted again.
    let timelines = open.timelines.into_iter().filter(|timeline| !timeline.is_archived()).collect();
    let by_name: HashMap<Named, Arc<Layer>> = layers(&Open { timelines, ..open }).collect();
    let wanted: Vec<Arc<Layer>> = list.hottest_first().iter().filter_map(|named| by_name.get(named).cloned()).collect();
    let cold: Vec<Arc<Layer>> = wanted.into_iter().filter(|layer| !layer.is_local()).collect();
    if cold.is_empty() {
        return;
    }
    wait_until_measured(conf).await;
    let fetched = futures_util::stream::iter(cold)
        .take_until(cancel.cancelled_owned())
        .map(|layer| fetch(conf, layer))
        .buffered(PARALLEL)
        // Hotter layers go first; stop at the first that does not fit.
        .take_while(|fetched| std::future::ready(*fetched))
        .count()
        .await;
    tracing::info!(%tenant, fetched, "layers that were hot are here again");
}

async fn wait_until_measured(conf: &PageServerConf) {
    let step = MEASURE_WAIT / 50;
    for _ in 0..50 {
        if conf.disk_budget.measured().is_some() {
            return;
        }
        env::clock::sleep(step).await;
    }
}

/// Downloads a layer if there is room. Returns whether it succeeded.
async fn fetch(conf: &PageServerConf, layer: Arc<Layer>) -> bool {
    let size = layer.desc().file_size;
    if !conf.disk_budget.has_room_for(size) {
        return false;
    }
    conf.disk_budget.note_used(size);
    let ctx = RequestContext::new(TaskKind::LayerDownload, DownloadBehavior::Download);
    let fetched = layer.download(&ctx).await;
    if let Err(error) = &fetched {
        tracing::info!("{}: not warmed: {error}", layer.path());
    }
    fetched.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::Resources;
    use crate::tenant::storage_layer::{LayerIdentity, PersistentLayerDesc};
    use pageserver_api::key::Key;
    use utils::id::{TenantId, TimelineId};
    use utils::lsn::Lsn;

    fn layer(lsn: u64) -> (Named, Arc<Layer>) {
        let (tenant, timeline) = (TenantShardId::unsharded(TenantId::from([1; 16])), TimelineId::from([2; 16]));
        let desc = PersistentLayerDesc::new_image(tenant, timeline, Key::MIN..Key::MAX, Lsn(lsn), 1);
        let layer = Layer::new(
            &Resources::default(),
            Utf8Path::new("/t"),
            desc,
            1,
            LayerIdentity { file_id: 1, tail_offset: 4096, filter_blocks: 0 },
        );
        let name = layer.path().file_name().unwrap().to_owned();
        ((timeline, name), Arc::new(layer))
    }

    #[test]
    fn after_a_start_what_was_hot_is_more_recent_than_the_rest() {
        let all: Vec<_> = (1..=4).map(layer).collect();
        let mut list = HotList::default();
        for (number, reads) in [(1, 50), (3, 5)] {
            list.note(all[number].0.clone(), reads);
        }
        restore_order(&list, all.iter().cloned());
        let mut order: Vec<usize> = (0..all.len()).collect();
        order.sort_by_key(|number| (all[*number].1.last_access(), *number));
        assert_eq!(order, [0, 2, 3, 1]);
        assert!(all.iter().all(|(_, layer)| layer.accesses() == 1), "nothing was read");
        let (coldest, hottest) = (all[0].1.last_access(), all[1].1.last_access());
        assert!(hottest - coldest < 60_000, "a read from here on counts as much");
    }
}
