//! Replicas: hot standbys of a compute, whose relations come from the pageserver as everybody's do.
//!
//! A replica begins at the redo point of its primary's last checkpoint: its relations are those of the branch at that
//! LSN, and from there on it replays what the primary sends. Its control file is that of a standby which was shut down
//! there. It keeps nothing over a stop: each start begins anew, which takes no longer than going on, and bounds
//! what it has on its disk.

use std::path::{Path, PathBuf};
use std::time::Duration;

use postgres_formats::control_file::{ClusterState, ControlFile};
use postgres_formats::wal_file::{parse_segment_file_name, segment_file_name};
use pq_proto::client::Client;
use tokio::runtime::Runtime;
use utils::lsn::Lsn;

use super::config::ComputeConfig;
use super::replica_of::ReplicaOf;
use super::server::{self, State};
use super::{LifecycleError, Result, io_error};
use crate::layout::Layout;

/// If the last checkpoint is further behind, there is a new one: to replay this takes well below a second.
const REPLAYED: u64 = 32 << 20;

/// Where the primary is, and what a replica has to have as large as it.
const POINT: &str = "SELECT c.redo_lsn, c.checkpoint_lsn, c.timeline_id, (pg_control_init()).bytes_per_wal_segment, \
     pg_wal_lsn_diff(pg_current_wal_insert_lsn(), c.redo_lsn)::bigint, \
     (SELECT string_agg(name || '=' || setting, ',') FROM pg_settings WHERE name IN ('max_connections', \
      'max_worker_processes', 'max_wal_senders', 'max_prepared_transactions', 'max_locks_per_transaction')), \
     (SELECT string_agg(spcname, ', ') FROM pg_tablespace WHERE pg_tablespace_location(oid) LIKE '/%'), \
     pg_current_wal_flush_lsn() \
     FROM pg_control_checkpoint() c";

/// How far a replica is: `received` and `replayed`, and whether it is connected.
const PROGRESS: &str = "SELECT coalesce(pg_last_wal_receive_lsn(), '0/0'), coalesce(pg_last_wal_replay_lsn(), '0/0'), \
     EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')";

/// A compute that runs, as what a replica of it needs to know.
#[derive(Clone, Debug)]
pub struct Primary {
    /// Its configuration.
    pub compute: ComputeConfig,
    /// Start of its last checkpoint: replay begins there.
    pub redo: Lsn,
    /// The record of the checkpoint.
    pub checkpoint: Lsn,
    /// The end of its WAL: what was committed before is before that.
    pub end: Lsn,
    timeline: u32,
    segment_size: u32,
    of: ReplicaOf,
}

/// A session at a primary, by whose slot that keeps WAL from the redo point on.
pub struct Kept {
    _runtime: Runtime,
    _client: Client,
}

/// How far a replica is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The end of the WAL that it has on its disk.
    pub received: Lsn,
    /// What readers see.
    pub replayed: Lsn,
    /// Whether its primary sends it WAL.
    pub is_streaming: bool,
}

impl Primary {
    /// Asks a compute, and has it keep the WAL that is needed until the other value is dropped. If its last checkpoint
    /// is far behind, there is a new one first.
    ///
    /// # Errors
    /// It does not run, does not write its branch, or has not answered within `limit`.
    pub fn of(layout: &Layout, limit: Duration) -> Result<(Self, Kept)> {
        let compute = ComputeConfig::load(layout)?;
        let name = compute.name.clone();
        if let Some(replica) = &compute.replica {
            let text = format!("{name} is a replica itself: name its primary, {}", replica.primary);
            return Err(LifecycleError::Refused(text));
        }
        if compute.read_only {
            return Err(LifecycleError::Refused(format!("{name} only reads: a replica follows a compute that writes")));
        }
        if !matches!(State::of(&compute, layout), State::Running(_)) {
            return Err(LifecycleError::Refused(format!("{name} does not run: pagectl compute start {name}")));
        }
        let asked = async {
            let mut client = server::connect(&compute, layout).await?;
            let kept: Lsn = first(&mut client, &keep()).await?;
            let mut found = ask(&mut client).await?;
            // What is kept begins with a checkpoint that may not have ended yet.
            if found.behind > REPLAYED || kept > found.redo {
                client.simple_query("CHECKPOINT").await.map_err(|error| error.to_string())?;
                found = ask(&mut client).await?;
            }
            Ok::<_, String>((found, client))
        };
        let late = |_| Err(format!("it does not answer within {limit:?}"));
        let runtime = server::runtime()?;
        let found = runtime.block_on(async { env::clock::timeout(limit, asked).await.unwrap_or_else(late) });
        let (found, client) = found.map_err(|reason| LifecycleError::Server(format!("{name}: {reason}")))?;
        let kept = Kept { _runtime: runtime, _client: client };
        if let Some(places) = found.tablespaces {
            return Err(LifecycleError::Refused(format!(
                "{name} has tablespaces at places of their own ({places}), where a replica on this machine would write \
                 into the same files: move what is there (ALTER ... SET TABLESPACE), and drop them"
            )));
        }
        let (primary, primary_id, minimums) = (name, compute.id.clone(), found.minimums);
        let of = ReplicaOf { primary, primary_id, connstr: server::connstr(&compute, layout), minimums };
        let Found { redo, checkpoint, end, timeline, segment_size, .. } = found;
        Ok((Self { compute, redo, checkpoint, end, timeline, segment_size, of }, kept))
    }

    /// What its replica notes of it.
    pub(super) fn noted(&self) -> ReplicaOf {
        self.of.clone()
    }

    /// Makes the data directory of an image begin at the redo point. What WAL the image has is another one.
    pub(super) fn begin(&self, layout: &Layout) -> Result<()> {
        let wal = layout.wal();
        for entry in std::fs::read_dir(&wal).map_err(io_error(&wal))? {
            let path = entry.map_err(io_error(&wal))?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if parse_segment_file_name(name, self.segment_size).is_some() {
                std::fs::remove_file(&path).map_err(io_error(&path))?;
            }
        }
        let mut control = control_file(layout)?;
        self.stand_by(&mut control);
        write(&control_path(layout), &control.encode())?;
        write(&layout.upper().join("standby.signal"), b"")
    }

    /// As a standby has it that has made a restartpoint of this checkpoint, has replayed nothing of what is behind, and
    /// was shut down. Not as a backup has it: one that needs no end ends when the primary is shut down.
    fn stand_by(&self, control: &mut ControlFile) {
        let fields = &mut control.fields;
        fields.state = ClusterState::ShutdownedInRecovery as u32;
        fields.checkpoint = self.checkpoint;
        fields.checkpoint_copy.redo = self.redo;
        fields.checkpoint_copy.timeline = self.timeline;
        fields.min_recovery_point = self.redo;
        fields.min_recovery_timeline = self.timeline;
        fields.backup_start_point = Lsn::INVALID;
        fields.backup_end_point = Lsn::INVALID;
        fields.backup_end_required = false;
    }
}

fn control_path(layout: &Layout) -> PathBuf {
    layout.upper().join("global/pg_control")
}

fn control_file(layout: &Layout) -> Result<ControlFile> {
    let path = control_path(layout);
    let bytes = std::fs::read(&path).map_err(io_error(&path))?;
    ControlFile::decode(&bytes).map_err(|error| LifecycleError::Server(format!("{}: {error}", path.display())))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    std::fs::write(path, bytes).map_err(io_error(path))
}

/// What a primary says.
#[derive(Debug)]
struct Found {
    redo: Lsn,
    checkpoint: Lsn,
    end: Lsn,
    timeline: u32,
    segment_size: u32,
    behind: u64,
    minimums: Vec<String>,
    tablespaces: Option<String>,
}

async fn ask(client: &mut Client) -> std::result::Result<Found, String> {
    let row = row(client, POINT).await?;
    let at = |column: usize| row.get(column).cloned().flatten().unwrap_or_default();
    Ok(Found {
        redo: parsed(&at(0))?,
        checkpoint: parsed(&at(1))?,
        timeline: parsed(&at(2))?,
        segment_size: parsed(&at(3))?,
        behind: parsed(&at(4))?,
        minimums: at(5).split(',').map(str::to_owned).collect(),
        tablespaces: row.get(6).cloned().flatten(),
        end: parsed(&at(7))?,
    })
}

fn parsed<T: std::str::FromStr>(text: &str) -> std::result::Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not what was asked for"))
}

/// Reserves WAL from the redo point of the last checkpoint on, which may not have ended, for as long as the session is
/// there. Returns where that is.
fn keep() -> String {
    let slot = format!("replica_{:016x}", env::random::u64());
    format!("SELECT lsn FROM pg_create_physical_replication_slot('{slot}', true, true)")
}

async fn first<T: std::str::FromStr>(client: &mut Client, sql: &str) -> std::result::Result<T, String> {
    parsed(row(client, sql).await?.first().cloned().flatten().as_deref().unwrap_or_default())
}

/// The row that a query returns.
async fn row(client: &mut Client, sql: &str) -> std::result::Result<Vec<Option<String>>, String> {
    let sets = client.simple_query(sql).await.map_err(|error| error.to_string())?;
    let row = sets.first().and_then(|set| set.rows.first()).ok_or_else(|| "it has no answer".to_owned())?;
    Ok(row.iter().map(|value| value.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned())).collect())
}

/// How far a replica is.
///
/// # Errors
/// It has not said so within `limit`.
pub fn progress(compute: &ComputeConfig, layout: &Layout, limit: Duration) -> std::result::Result<Progress, String> {
    let asked = async {
        let mut client = server::connect(compute, layout).await?;
        let row = row(&mut client, PROGRESS).await?;
        client.close().await;
        let at = |column: usize| row.get(column).cloned().flatten().unwrap_or_default();
        let (received, replayed) = (parsed::<Lsn>(&at(0))?, parsed(&at(1))?);
        Ok(Progress { received: received.max(replayed), replayed, is_streaming: at(2) == "t" })
    };
    let late = |_| Err(format!("it does not answer within {limit:?}"));
    let runtime = server::runtime().map_err(|error| error.to_string())?;
    runtime.block_on(async { env::clock::timeout(limit, asked).await.unwrap_or_else(late) })
}

/// The end of the WAL of a compute that writes.
///
/// # Errors
/// It has not said so within `limit`.
pub fn wal_end(compute: &ComputeConfig, layout: &Layout, limit: Duration) -> std::result::Result<Lsn, String> {
    server::wal(compute, layout, limit).map(|wal| wal.flushed)
}

/// Makes a replica one of another compute of its branch, from its next start on.
///
/// # Errors
/// It is none, or cannot be written.
pub fn follow(layout: &Layout, primary: &str) -> Result<()> {
    let mut compute = ComputeConfig::load(layout)?;
    let Some(replica) = &mut compute.replica else {
        return Err(LifecycleError::Refused(format!("{} is no replica", compute.name)));
    };
    primary.clone_into(&mut replica.primary);
    compute.store(layout)
}

/// WAL that a compute has on its disk, from `from` to `end` or the end of a segment, at most `most` bytes; nothing if
/// it has none there.
pub fn wal_between(layout: &Layout, from: Lsn, end: Lsn, most: usize) -> Result<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let control = control_file(layout)?;
    let (size, timeline) = (control.fields.wal_segment_size, control.fields.checkpoint_copy.timeline);
    let path = layout.wal().join(segment_file_name(timeline, from.segment_number(size.into()), size));
    let offset = from.segment_offset(size.into());
    let left = end.0.saturating_sub(from.0).min(u64::from(size) - offset).min(most as u64);
    let mut wal = vec![0; usize::try_from(left).unwrap_or(most)];
    let read = std::fs::File::open(&path).and_then(|file| file.read_exact_at(&mut wal, offset));
    read.map_err(io_error(&path))?;
    Ok(wal)
}
