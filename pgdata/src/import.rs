//! Import: a data directory becomes the first image layers of a timeline.
//!
//! A cleanly stopped directory is complete at its shutdown checkpoint, and so is the timeline. The files of a base
//! backup were copied while the server was writing to them: the timeline's images at the backup's redo point contain
//! pages from later, whose LSNs make replay of the WAL skip what they already include, as in the server's own
//! recovery. **Such a timeline gives correct pages only at LSNs from the backup's end on.**
//!
//! A base backup streamed by a server is imported the same way ([`BackupImport`]); its large files are never stored
//! on disk.
//!
//! Memory is bounded by a chunk of pages, a few MiB of those being compressed, and the names of all files.

mod backup;
mod room;
mod segment;
mod sink;
mod staging;
mod stats;
mod tar;
#[cfg(test)]
mod tests;
mod walk;

use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;
use utils::lsn::Lsn;

pub use backup::{BackupImport, BackupStart, BackupTablespace};
pub use backup::{discard, remove};
use datadir::DataDir;
use engine::config::PageServerConf;
use engine::context::RequestContext;
use engine::tenant::timeline::{NewTimeline, Origin, Timeline};
use errors::StorageError;
use room::Room;
use sink::{ImageSink, Target};
pub use stats::ImportStats;
use walk::Walk;

/// Makes a timeline of `source`. `progress` is called periodically with the totals so far.
///
/// # Errors
/// [`StorageError::Corrupt`] with file and offset if the directory is damaged; [`StorageError::Invalid`] if it is
/// neither that of a stopped server nor a base backup, or if the timeline exists. After an error, what was written
/// does not form a timeline.
pub async fn import(
    conf: &'static PageServerConf,
    tenant_shard_id: TenantShardId,
    timeline_id: TimelineId,
    source: &DataDir,
    progress: &mut (dyn FnMut(&ImportStats) + Send),
    ctx: &RequestContext,
) -> Result<(Timeline, ImportStats), StorageError> {
    import_in_layers(conf, tenant_shard_id, timeline_id, source, None, progress, ctx).await
}

async fn import_in_layers(
    conf: &'static PageServerConf,
    tenant_shard_id: TenantShardId,
    timeline_id: TimelineId,
    source: &DataDir,
    layer_bytes: Option<u64>,
    progress: &mut (dyn FnMut(&ImportStats) + Send),
    ctx: &RequestContext,
) -> Result<(Timeline, ImportStats), StorageError> {
    let lsn = source.start_lsn()?;
    check_lsn(source, lsn)?;
    Timeline::prepare(conf, tenant_shard_id, timeline_id).await?;
    let room = Room::new(conf, tenant_shard_id, timeline_id, None);
    let layer_bytes = layer_bytes.unwrap_or_else(|| room.layer_bytes());
    let target = Target { conf, tenant_shard_id, timeline_id, lsn, layer_bytes, room, ctx: ctx.clone() };
    let sink = ImageSink::new(target, Key::MIN..Key::MAX);
    let mut walk = Walk::new(source, sink, progress);
    walk.run().await?;
    let (layers, stats) = walk.finish().await?;
    let new =
        NewTimeline { tenant_shard_id, timeline_id, origin: origin(source, lsn, lsn), prev_record_lsn: Lsn::INVALID };
    let timeline = Timeline::create(conf, new, layers, ctx).await?;
    Ok((timeline, stats))
}

fn origin(source: &DataDir, import_lsn: Lsn, consistent_lsn: Lsn) -> Origin {
    let parameters = source.parameters();
    Origin {
        pg_version: source.version(),
        system_identifier: parameters.system_identifier,
        wal_segment_size: parameters.wal_segment_size,
        data_checksums: parameters.data_checksums,
        wal_log_hints: parameters.wal_log_hints,
        import_lsn,
        consistent_lsn,
        ancestor: None,
    }
}

/// A record must be able to start at the import LSN.
fn check_lsn(source: &DataDir, lsn: Lsn) -> Result<(), StorageError> {
    let segment_size = u64::from(source.control().fields.wal_segment_size);
    if lsn.is_valid() && lsn.normalize(segment_size) == lsn {
        return Ok(());
    }
    Err(StorageError::Invalid(format!("{}: no record can start at its checkpoint {lsn}", source.root())))
}
