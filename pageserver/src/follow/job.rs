//! One request to follow a server, from the connection to the receiver.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::shard::TenantShardId;
use pq_proto::replication::{BackupEvent, BaseBackup, BaseBackupOptions, ReplicationClient};
use pq_proto::sqlstate::SqlState;
use tokio_util::sync::CancellationToken;
use utils::id::TimelineId;

use super::error::FollowError;
use super::status::{FollowPhase, StatusCell};
use super::{checks, synchrony};
use crate::walreceiver::{WalReceivers, WalSource};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use metrics::{self, METRICS, StorageOperation};
use pgdata::import::{BackupImport, BackupStart, BackupTablespace, ImportStats, discard};

/// Time limit for removing the slot after a failure.
const DROP_SLOT_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for the WAL that makes the copy consistent.
const FIRST_WAL: Duration = Duration::from_secs(60);

/// A request in progress.
pub(super) struct Job {
    pub(super) manager: TenantManager,
    pub(super) receivers: WalReceivers,
    pub(super) tenant: TenantShardId,
    pub(super) timeline: TimelineId,
    pub(super) source: WalSource,
    /// Whether the slot's name is derived from this timeline, so that nobody else can have created it.
    pub(super) slot_is_ours: bool,
    pub(super) cancel: CancellationToken,
    pub(super) status: StatusCell,
}

/// Completes the request, or leaves nothing behind except the reason in the status.
pub(super) async fn run(job: Arc<Job>) {
    let (id, host) = (job.timeline, job.source.host());
    tracing::info!(timeline = %id, "copying the server at {host}");
    let _timer = metrics::timer(METRICS.storage_operations_seconds_global.of(StorageOperation::Import));
    let tenant_is_new = !job.manager.tenants().contains(&job.tenant);
    match job.follow().await {
        Ok(()) => tracing::info!(timeline = %id, "following the server at {host}"),
        Err(error) => {
            tracing::warn!(timeline = %id, "cannot follow the server at {host}: {error}");
            if tenant_is_new && job.manager.timelines(job.tenant).is_ok_and(|timelines| timelines.is_empty()) {
                // It was empty, and what is left of it would come back as a tenant without timelines.
                let _ = job.manager.delete_tenant(job.tenant).await;
            }
            job.status.update(|status| (status.phase, status.error) = (FollowPhase::Failed, Some(error.to_string())));
        }
    }
}

impl Job {
    /// Whatever the job has created is left for the next start to remove.
    pub(super) fn note_panic(&self, reason: String) {
        self.status.update(|status| (status.phase, status.error) = (FollowPhase::Failed, Some(reason)));
    }

    async fn follow(&self) -> Result<(), FollowError> {
        let mut client = self.or_cancelled(self.connect()).await?;
        self.or_cancelled(checks::check_server(&mut client)).await?;
        self.or_cancelled(self.warn(&mut client)).await?;
        self.manager.create_tenant(self.tenant).await?;
        Timeline::prepare(self.manager.conf(), self.tenant, self.timeline).await?;
        if let Err(error) = self.make_slot(&mut client).await {
            discard(&self.dir()).await?;
            return Err(error);
        }
        match self.follow_with_slot(client).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.clean_up(error).await),
        }
    }

    async fn connect(&self) -> Result<ReplicationClient, FollowError> {
        Ok(ReplicationClient::connect(&self.source.config()?).await?)
    }

    /// Warns about settings of the server with consequences that its administrator may not expect.
    async fn warn(&self, client: &mut ReplicationClient) -> Result<(), FollowError> {
        let config = self.source.config()?;
        let name = config.get_application_name().unwrap_or_default();
        let until_written = (!self.receivers.has_journal()).then(|| self.manager.conf().checkpoint_timeout);
        if let Some(warning) = synchrony::warning(client, name, until_written).await? {
            tracing::warn!(timeline = %self.timeline, "{warning}");
            self.status.update(|status| status.warnings.push(warning));
        }
        Ok(())
    }

    async fn make_slot(&self, client: &mut ReplicationClient) -> Result<(), FollowError> {
        let slot = self.source.slot();
        let failed = |error| checks::slot_error(slot, error);
        match client.create_physical_slot(slot, true).await {
            Err(error) if error.sqlstate() == Some(SqlState::DUPLICATE_OBJECT) && self.slot_is_ours => {
                tracing::info!("slot {slot} is left from an earlier attempt");
                client.drop_slot(slot).await.map_err(failed)?;
                client.create_physical_slot(slot, true).await.map_err(failed)
            }
            other => other.map_err(failed),
        }
    }

    async fn follow_with_slot(&self, client: ReplicationClient) -> Result<(), FollowError> {
        let label = format!("pageserver timeline {}", self.timeline);
        let options = BaseBackupOptions { label, ..BaseBackupOptions::default() };
        let backup = self.or_cancelled(async { Ok(client.base_backup(&options).await?) }).await?;
        let timeline = self.import(backup).await?;
        if self.cancel.is_cancelled() {
            remove(timeline).await?;
            return Err(FollowError::Cancelled);
        }
        if let Err(error) = self.manager.add(timeline.clone()).await {
            remove(timeline).await?;
            return Err(error.into());
        }
        self.receivers.start(timeline.clone(), self.source.clone()).await;
        self.first_wal(&timeline).await;
        self.status.update(|status| status.phase = FollowPhase::Streaming);
        Ok(())
    }

    /// Waits a while for the WAL up to the backup's end, so that pages can be read as soon as the request is done. If
    /// it does not arrive, the receiver's status has the reason.
    async fn first_wal(&self, timeline: &Timeline) {
        tokio::select! {
            _ = timeline.wait_for_lsn_timeout(timeline.min_readable_lsn(), FIRST_WAL) => {}
            () = self.cancel.cancelled() => {}
        }
    }

    async fn import(&self, backup: BaseBackup) -> Result<Timeline, FollowError> {
        let start = backup_start(&backup);
        let total: u64 = backup.tablespaces().iter().filter_map(|tablespace| tablespace.size_kb).sum();
        self.status.update(|status| {
            (status.phase, status.start_lsn) = (FollowPhase::Copying, Some(start.lsn));
            status.total_bytes = (total > 0).then_some(total * 1024);
        });
        let ctx = RequestContext::new(TaskKind::ImportPgData, DownloadBehavior::Error);
        let remote = self.manager.remote_of(self.tenant);
        let conf = self.manager.conf();
        let mut import = BackupImport::begin(conf, self.tenant, self.timeline, &start, remote, &ctx).await?;
        // Stored with the manifest, so that the timeline never comes back without its source.
        import.tell(self.source.told()?);
        let left = import.left();
        let imported = self.receive_all(backup, import).await;
        if imported.is_err() {
            left.discard().await;
        }
        imported
    }

    async fn receive_all(&self, mut backup: BaseBackup, mut import: BackupImport) -> Result<Timeline, FollowError> {
        let start = backup.start().lsn;
        self.or_cancelled(self.receive(&mut backup, &mut import)).await?;
        let end = backup.end().map_or(start, |end| end.lsn);
        self.status.update(|status| (status.phase, status.consistent_lsn) = (FollowPhase::Finishing, Some(end)));
        let mut progress = |stats: &ImportStats| self.status.update(|status| status.layers = stats.layers);
        let (timeline, _) = import.finish(end, &mut progress).await?;
        Ok(timeline)
    }

    async fn receive(&self, backup: &mut BaseBackup, import: &mut BackupImport) -> Result<(), FollowError> {
        while let Some(event) = backup.next().await? {
            match event {
                BackupEvent::NewArchive { name, spcoid, .. } => import.archive(&name, spcoid).await?,
                BackupEvent::Data(bytes) => import.data(bytes).await?,
                BackupEvent::Progress(_) => {}
            }
            self.status.update(|status| {
                (status.bytes, status.files) = (import.received(), import.files());
                status.layers = import.layers();
                status.total_bytes = status.total_bytes.map(|total| total.max(status.bytes));
            });
        }
        Ok(())
    }

    /// Removes what was written, and the slot, which would otherwise retain WAL forever. Reports what cannot be
    /// removed.
    async fn clean_up(&self, error: FollowError) -> FollowError {
        if let Err(left) = discard(&self.dir()).await {
            tracing::warn!("{} is left: {left}", self.dir());
        }
        let slot = self.source.slot();
        let dropped = env::clock::timeout(DROP_SLOT_TIMEOUT, async {
            self.connect().await?.drop_slot_when_idle(slot).await.map_err(FollowError::from)
        });
        let left = match dropped.await {
            Ok(Ok(())) => return error,
            Ok(Err(left)) => left.to_string(),
            Err(_) => "timed out".to_owned(),
        };
        FollowError::Refused(format!(
            "{error}; and the replication slot {slot} could not be dropped ({left}): drop it on the server, it \
             keeps WAL"
        ))
    }

    fn dir(&self) -> Utf8PathBuf {
        self.manager.conf().timeline_path(&self.tenant, &self.timeline)
    }

    async fn or_cancelled<T>(&self, work: impl Future<Output = Result<T, FollowError>>) -> Result<T, FollowError> {
        tokio::select! {
            done = work => done,
            () = self.cancel.cancelled() => Err(FollowError::Cancelled),
        }
    }
}

fn backup_start(backup: &BaseBackup) -> BackupStart {
    let tablespaces = backup.tablespaces().iter().filter_map(|tablespace| {
        let path = tablespace.location.clone().unwrap_or_default();
        Some(BackupTablespace { oid: tablespace.oid?, path })
    });
    BackupStart { lsn: backup.start().lsn, tablespaces: tablespaces.collect() }
}

/// Removes a timeline that is not registered yet.
async fn remove(timeline: Timeline) -> Result<(), FollowError> {
    let dir = timeline.dir().to_owned();
    if let Err(error) = timeline.bury().await {
        tracing::warn!(timeline = %timeline.timeline_id(), "it may be left in the bucket, delete it: {error}");
    }
    timeline.shutdown().await;
    Ok(pgdata::import::remove(&dir).await?)
}
