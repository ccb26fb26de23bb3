//! Has at a standby what is hot at the owner (`tenant::ahead`).

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::Utf8Path;
use futures_util::StreamExt;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::hot_list::{HotList, MAX_LEN, Named};
use crate::config::PageServerConf;
use crate::tenant::ahead::{forget, root};
use crate::tenant::storage_layer::LayerFileName;
use errors::{ErrorKind, StorageError};
use metrics::METRICS;
use remote_storage::{RemotePath, RemoteStorage, RequestClass};
use virtual_file::fs::{self, TEMP_SUFFIX};
use virtual_file::{AlignedBuf, OpenMode, VirtualFile};

/// Layers of one tenant downloaded concurrently.
const PARALLEL: usize = 2;
/// Bytes fetched at once.
const CHUNK: u64 = 8 << 20;

/// Makes the files of a tenant those that are hot at its owner, as far as there is room, the hottest first. Returns how
/// many came. `wanted` says whether they still are of use.
///
/// # Errors
/// Those of the disk and of the bucket. What is there stays.
pub(crate) async fn keep(
    conf: &PageServerConf,
    storage: &RemoteStorage,
    tenant: TenantShardId,
    wanted: impl Fn() -> bool,
) -> Result<usize, StorageError> {
    let object = RemotePath::hot_layers(&tenant);
    let list = match storage.get(RequestClass::Control, &object, MAX_LEN).await {
        Ok(bytes) => HotList::decode(Utf8Path::new(&storage.name_of(&object)), &bytes)?,
        Err(error) if error.kind() == ErrorKind::Gone => HotList::default(),
        Err(error) => return Err(error),
    };
    let root = root(conf, tenant);
    // Where there is none, nothing that comes in must have to wait for what may never be read.
    let hot = if conf.disk_budget.has_room_for(0) { list.hottest_first() } else { Vec::new() };
    let there = remove_others(&root, &hot.iter().cloned().collect()).await?;
    let cold: Vec<Named> = hot.into_iter().filter(|named| is_layer(named) && !there.contains(named)).collect();
    let mut left = if conf.disk_budget_bytes == 0 { u64::MAX } else { conf.disk_budget_bytes / 2 };
    for named in &there {
        left = left.saturating_sub(size_of(&root, named).await.unwrap_or_default());
    }
    let left = &AtomicU64::new(left);
    let fetched = futures_util::stream::iter(cold)
        .map(|named| fetch(conf, storage, tenant, named, left))
        .buffered(PARALLEL)
        .take_while(|fetched| std::future::ready(matches!(fetched, Ok(true)) && wanted()))
        .count()
        .await;
    if !wanted() {
        forget(conf, tenant).await?;
    }
    Ok(fetched)
}

/// A list from a bucket names files here.
fn is_layer((_, name): &Named) -> bool {
    name.parse::<LayerFileName>().is_ok()
}

async fn size_of(root: &Utf8Path, (timeline, name): &Named) -> Result<u64, StorageError> {
    VirtualFile::open(&root.join(timeline.to_string()).join(name), OpenMode::Read).await?.size()
}

/// Removes the files that are none of these, and returns which are there.
async fn remove_others(root: &Utf8Path, hot: &HashSet<Named>) -> Result<HashSet<Named>, StorageError> {
    let mut there = HashSet::new();
    for timeline in fs::list_dir_if_any(root).await? {
        let Ok(id) = timeline.parse::<TimelineId>() else { continue };
        for name in fs::list_dir_if_any(&root.join(&timeline)).await? {
            let named = (id, name);
            if hot.contains(&named) {
                there.insert(named);
            } else {
                fs::unlink(&root.join(&timeline).join(&named.1)).await?;
            }
        }
    }
    Ok(there)
}

/// Fetches a layer. False if there is no room for it.
async fn fetch(
    conf: &PageServerConf,
    storage: &RemoteStorage,
    tenant: TenantShardId,
    (timeline, name): Named,
    left: &AtomicU64,
) -> Result<bool, StorageError> {
    let object = RemotePath::layer(&tenant, &timeline, &name);
    // It may have been replaced since.
    let Some(size) = storage.head(RequestClass::Control, &object).await? else { return Ok(true) };
    let take = |left: u64| left.checked_sub(size);
    let has_left = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok();
    if !has_left || !conf.disk_budget.has_room_for(size) {
        return Ok(false);
    }
    conf.disk_budget.note_used(size);
    let dir = root(conf, tenant).join(timeline.to_string());
    fs::create_dir_all(&dir).await?;
    let (path, temp) = (dir.join(&name), dir.join(format!("{name}{TEMP_SUFFIX}")));
    fs::unlink(&temp).await?;
    let file = VirtualFile::open(&temp, OpenMode::CreateNew).await?;
    let mut at = 0;
    while at < size {
        let bytes = storage.get_range(RequestClass::Prefetch, &object, at..size.min(at + CHUNK)).await?;
        let whole = bytes.len().next_multiple_of(usize::try_from(file.align()).unwrap_or(1));
        let mut buf = AlignedBuf::with_capacity(whole);
        buf.extend_from_slice(&bytes);
        buf.extend_with_zeros(whole - bytes.len());
        file.write_at(at, buf).await?;
        at += bytes.len() as u64;
    }
    file.set_len(size).await?;
    file.sync().await?;
    file.rename(&path).await?;
    METRICS.layers_warmed_ahead.inc();
    Ok(true)
}
