//! Puts what the journal has into the bucket, every few seconds, and removes it once layers have it.

use std::collections::HashMap;
use std::time::Duration;

use bytes::BytesMut;
use futures_util::StreamExt;
use journal::{Lane, Replay};
use metrics::METRICS;
use remote_storage::{RemotePath, RequestClass};
use utils::lsn::Lsn;

use super::object::{Name, Tail, WAL_MAX};
use super::taking::names;
use crate::walreceiver::{Id, WalReceivers, WalSource};
use engine::tenant::timeline::Timeline;
use errors::StorageError;

/// Timelines that are looked at at once.
const PARALLEL: usize = 8;

/// What the bucket has of a timeline's tail.
#[derive(Debug, Default)]
struct Shipped {
    /// The timeline as it was opened: after that, nothing is known.
    instance: Option<u64>,
    /// Whose WAL it is.
    mark: String,
    objects: Vec<Name>,
    /// What was there before has been listed.
    is_listed: bool,
    /// The end of what was put there.
    end: Lsn,
    has_failed: bool,
}

impl WalReceivers {
    /// Looks every `interval` for WAL that only the journal has, until shutdown.
    pub(in crate::walreceiver) async fn ship_tails(self, interval: Duration) {
        let mut known: HashMap<Id, Shipped> = HashMap::new();
        loop {
            tokio::select! {
                () = env::clock::sleep(interval) => {}
                () = self.inner.cancel.cancelled() => return,
            }
            let mut before = std::mem::take(&mut known);
            let manager = &self.inner.manager;
            let all = manager.tenants().into_iter().flat_map(|tenant| manager.timelines(tenant).unwrap_or_default());
            let mut due = Vec::new();
            for timeline in all {
                let id = (timeline.tenant_shard_id(), timeline.timeline_id());
                let Some(lane) = self.lane(id) else { return };
                due.push((id, timeline, lane, before.remove(&id).unwrap_or_default()));
            }
            let shipping = due.into_iter().map(|(id, timeline, lane, shipped)| async move {
                (id, ship_or_warn(&timeline, &lane, shipped).await)
            });
            let mut shipping = futures_util::stream::iter(shipping).buffer_unordered(PARALLEL);
            loop {
                tokio::select! {
                    next = shipping.next() => match next {
                        Some((id, shipped)) => drop(known.insert(id, shipped)),
                        None => break,
                    },
                    () = self.inner.cancel.cancelled() => return,
                }
            }
        }
    }
}

async fn ship_or_warn(timeline: &Timeline, lane: &Lane, mut shipped: Shipped) -> Shipped {
    match ship(timeline, lane, &mut shipped).await {
        Ok(()) => shipped.has_failed = false,
        Err(error) if !shipped.has_failed => {
            let timeline = timeline.timeline_id();
            tracing::warn!(%timeline, "the tail of its WAL is not in the bucket, and will be tried again: {error}");
            shipped.has_failed = true;
        }
        Err(_) => {}
    }
    shipped
}

/// Puts there what is new, and removes what is not needed any more. Makes no request if there is neither.
async fn ship(timeline: &Timeline, lane: &Lane, shipped: &mut Shipped) -> Result<(), StorageError> {
    let Some(remote) = timeline.remote().filter(|remote| remote.check_lease().is_ok()) else { return Ok(()) };
    if timeline.fenced().is_some() {
        return Ok(());
    }
    let mark = WalSource::of(timeline).ok().flatten().map(|source| source.writer_mark()).unwrap_or_default();
    if shipped.instance != Some(timeline.instance()) {
        *shipped =
            Shipped { instance: Some(timeline.instance()), has_failed: shipped.has_failed, ..Shipped::default() };
    }
    if shipped.mark != mark {
        // What another one wrote stays until layers have it.
        (shipped.mark, shipped.end) = (mark, Lsn::INVALID);
    }
    let durable = timeline.durable_lsn();
    if durable == Lsn::INVALID {
        return Ok(());
    }
    // Whoever goes on needs the page in which the last record ends from its beginning on.
    let leaves_gap = fault::planted(fault::Bug::TailLeavesGap);
    let needed = if leaves_gap { durable } else { durable.page_start() };
    let covered: Vec<Name> = shipped.objects.extract_if(.., |name| name.end <= needed).collect();
    remove(timeline, covered).await?;
    let from = shipped.end.max(needed);
    if lane.synced() <= from.max(durable) || shipped.mark.is_empty() {
        return Ok(());
    }
    if !shipped.is_listed {
        shipped.objects = names(timeline, remote).await?;
        shipped.is_listed = true;
    }
    let mut pieces = lane.replay(from);
    let mut at = from;
    while let Some(wal) = gather(&mut pieces, at).await? {
        let name = Name { start: at, end: at + wal.len() as u64, generation: remote.generation() };
        let tail = Tail { mark: shipped.mark.clone(), start: at, wal: wal.freeze() };
        let path = name.path(&timeline.tenant_shard_id(), &timeline.timeline_id());
        remote.storage().put(RequestClass::Tail, &path, tail.encode()).await?;
        METRICS.tail_objects.inc();
        METRICS.tail_bytes.inc_by(name.end.0 - name.start.0);
        shipped.objects.push(name);
        (at, shipped.end) = (name.end, name.end);
    }
    Ok(())
}

/// The next bytes from `at` on, as many as go into an object; `None` if there are none without a gap.
async fn gather(pieces: &mut Replay, at: Lsn) -> Result<Option<BytesMut>, StorageError> {
    let mut wal = BytesMut::new();
    while wal.len() < WAL_MAX / 2
        && let Some((start, bytes)) = pieces.next().await?
    {
        if start != at + wal.len() as u64 {
            break;
        }
        wal.extend_from_slice(&bytes);
    }
    Ok(Some(wal).filter(|wal| !wal.is_empty()))
}

/// Removes objects, unless another server owns the tenant by now.
async fn remove(timeline: &Timeline, objects: Vec<Name>) -> Result<(), StorageError> {
    let Some(remote) = timeline.remote().filter(|_| !objects.is_empty()) else { return Ok(()) };
    remote.check().await?;
    let (tenant, timeline) = (timeline.tenant_shard_id(), timeline.timeline_id());
    let paths: Vec<RemotePath> = objects.iter().map(|name| name.path(&tenant, &timeline)).collect();
    remote.storage().delete(&paths).await
}
