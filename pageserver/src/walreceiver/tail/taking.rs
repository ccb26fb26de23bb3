//! Takes in what the bucket has of a timeline's WAL behind its layers.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream;
use remote_storage::{RemotePath, RequestClass, TAIL_PREFIX};
use utils::lsn::Lsn;

use super::object::{Name, OBJECT_MAX, Tail};
use crate::walreceiver::WalSource;
use crate::walreceiver::intake::Beginning;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::remote::TenantRemote;
use engine::tenant::timeline::Timeline;
use errors::{ErrorKind, StorageError};
use pgdata::ingest::pipeline::{WalIntake, WalPiece};

/// Timelines whose tail is looked for at once.
const PARALLEL: usize = 16;

/// Takes in what the bucket has of all these timelines.
///
/// # Errors
/// Those of the bucket and of the disk: then it is not known what there is.
pub(in crate::walreceiver) async fn take_in_all(timelines: &[Timeline]) -> Result<(), StorageError> {
    let mut tails = stream::iter(timelines).map(take_in).buffer_unordered(PARALLEL);
    while let Some(taken_in) = tails.next().await {
        taken_in?;
    }
    Ok(())
}

/// Takes in what continues the timeline without a gap, and is of its writer, and makes it durable here.
/// What makes no sense is logged, and ends what is taken in.
async fn take_in(timeline: &Timeline) -> Result<(), StorageError> {
    let Some(remote) = timeline.remote() else { return Ok(()) };
    // What makes no sense its receiver reports.
    let Ok(Some(source)) = WalSource::of(timeline) else { return Ok(()) };
    let names = names(timeline, remote).await?;
    if names.last().is_none_or(|last| last.end <= timeline.last_record_lsn()) {
        return Ok(());
    }
    let id = timeline.timeline_id();
    let beginning = match Beginning::load(timeline).await {
        Ok(beginning) => beginning,
        Err(failure) => {
            tracing::warn!(timeline = %id, "the tail of its WAL in the bucket was not taken in: {failure}");
            return Ok(());
        }
    };
    let (stored, at) = (beginning.last_record(), beginning.feed_lsn());
    let intake = beginning.start();
    let fed = feed(timeline, remote, &names, &source.writer_mark(), at, &intake).await;
    let (progress, taken_in) = intake.finish().await;
    let reached = progress.last_record;
    if reached > stored {
        tracing::info!(timeline = %id, "WAL from {stored} to {reached} was in the bucket, behind its layers");
        let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Download);
        // The journal here does not have it.
        timeline.flush(&ctx).await?;
    }
    if let Err(error) = taken_in {
        tracing::warn!(timeline = %id, "the tail of its WAL in the bucket cannot be read from {reached} on: {error}");
    }
    fed
}

/// The names of the objects that there are, in order.
pub(super) async fn names(timeline: &Timeline, remote: &Arc<TenantRemote>) -> Result<Vec<Name>, StorageError> {
    let (tenant, timeline) = (timeline.tenant_shard_id(), timeline.timeline_id());
    let (prefix, before) =
        (RemotePath::timeline(&tenant, &timeline), RemotePath::layer(&tenant, &timeline, TAIL_PREFIX));
    let listed = remote.storage().list_after(RequestClass::Tail, &prefix, &before).await?;
    let mut names: Vec<Name> = listed.iter().filter_map(|object| Name::parse(object.path.file_name())).collect();
    names.sort_unstable();
    Ok(names)
}

/// Feeds what there is of one writer from the byte at `at` on, up to the first gap.
async fn feed(
    timeline: &Timeline,
    remote: &Arc<TenantRemote>,
    names: &[Name],
    mark: &str,
    mut at: Lsn,
    intake: &WalIntake,
) -> Result<(), StorageError> {
    let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
    for name in names {
        if name.start > at || name.end <= at {
            continue;
        }
        let path = name.path(&tenant, &id);
        let bytes = match remote.storage().get(RequestClass::Tail, &path, OBJECT_MAX).await {
            // The owner that put it there has layers of it meanwhile.
            Err(error) if error.kind() == ErrorKind::Gone => continue,
            bytes => bytes?,
        };
        let tail = match Tail::decode(name, bytes) {
            Ok(tail) => tail,
            Err(reason) => {
                let object = remote.storage().name_of(&path);
                tracing::error!(timeline = %id, "{object} is damaged, and what follows it is not taken in: {reason}");
                continue;
            }
        };
        // What a former writer wrote is in layers, as far as it counts.
        if tail.mark != mark {
            continue;
        }
        let known = usize::try_from(at.0 - tail.start.0).unwrap_or(usize::MAX).min(tail.wal.len());
        if intake.pieces().send(WalPiece { start: at, bytes: tail.wal.slice(known..) }).await.is_err() {
            // It says why when it is finished.
            break;
        }
        at = name.end;
    }
    Ok(())
}
