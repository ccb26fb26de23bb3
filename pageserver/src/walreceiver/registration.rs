//! Registration of computes as the writers of branches: see [`super::writer`].

use std::time::Duration;

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use super::WalReceivers;
use super::journaled;
use super::source::WalSource;
use super::writer::{NewWriter, Writer};
use engine::context::{DownloadBehavior, RequestContext};
use engine::lease::LeaseState;
use engine::task_mgr::TaskKind;
use engine::tenant::manager::ManageError;
use engine::tenant::timeline::Timeline;

/// How long a registration may take until it is in the bucket, for a standby to find.
const REGISTERED: Duration = Duration::from_secs(20);

impl WalReceivers {
    /// Registers a compute and follows it. Registering the same compute again only updates how to reach it; if that is
    /// unchanged, a new connection stays, and a receiver that waits to try again tries at once.
    ///
    /// # Errors
    /// [`ManageError::Conflict`] if the timeline has another writer or follows a server;
    /// [`ManageError::Precondition`] if the timeline does not end where the compute starts, or is archived.
    pub async fn register_writer(&self, timeline: &Timeline, new: NewWriter) -> Result<(), ManageError> {
        let changing = self.inner.writers.lock().await;
        let id = (timeline.tenant_shard_id(), timeline.timeline_id());
        if let Some(reason) = timeline.fenced().or_else(|| timeline.broken()) {
            return Err(ManageError::Busy(format!("timeline {} takes no more writes: {reason}", id.1)));
        }
        if let Some(Err(error)) = timeline.remote().map(|remote| remote.check_lease()) {
            return Err(ManageError::Busy(error.to_string()));
        }
        if timeline.is_archived() {
            let reason = format!("timeline {} is archived and takes in nothing: unarchive it first", id.1);
            return Err(ManageError::Precondition(reason));
        }
        let mut source = WalSource::new(&new.connstr, &new.slot)?;
        let before = WalSource::of(timeline)?;
        let known = before.as_ref().and_then(|before| before.writer.as_ref());
        if let Some(same) = known.filter(|known| known.id == new.writer.id) {
            source.writer = Some(Writer { start_lsn: same.start_lsn, ..new.writer });
            if before.as_ref() == Some(&source) && self.keep(timeline, &source) {
                return Ok(());
            }
        } else {
            check_free(id.1, before.as_ref(), new.replace)?;
            // Everything sent so far is ingested, so that the timeline's end is known.
            self.halt(id).await;
            if let Err(error) = self.end_writer(timeline, &new.writer).await {
                if let Some(before) = before {
                    self.start(timeline.clone(), before).await;
                }
                return Err(error);
            }
            if let Err(error) = self.write_out(timeline).await {
                if let Some(before) = before {
                    self.start(timeline.clone(), before).await;
                }
                return Err(error);
            }
            source.writer = Some(new.writer);
        }
        source.store(timeline).await?;
        self.start(timeline.clone(), source).await;
        drop(changing);
        if self.inner.manager.lease() != LeaseState::None && !timeline.wait_uploaded(REGISTERED).await {
            // A standby that took over now would not know of the writer.
            let reason = format!("the bucket does not know yet that a compute writes timeline {}: try again", id.1);
            return Err(ManageError::Busy(reason));
        }
        Ok(())
    }

    /// Ends what the former writer wrote where `new` begins. What was received, and is durable in the journal only,
    /// belongs to it; what the journal has behind that is void.
    async fn end_writer(&self, timeline: &Timeline, new: &Writer) -> Result<(), ManageError> {
        let Some(lane) = self.lane((timeline.tenant_shard_id(), timeline.timeline_id())) else {
            return check_end(timeline, new);
        };
        journaled::replay(timeline, &lane).await.map_err(|failure| {
            ManageError::Busy(format!("what the journal has of the branch was not taken in yet: {failure}"))
        })?;
        check_end(timeline, new)?;
        Ok(lane.void(timeline.last_record_lsn()).await?)
    }

    /// Has layers of all that the former writer wrote. So the bucket has that as soon as it names another one, or none,
    /// and what a standby has journaled of a former writer, or the bucket's tail has, is never needed any more.
    async fn write_out(&self, timeline: &Timeline) -> Result<(), ManageError> {
        let has_tail = self.has_journal() && self.inner.manager.conf().bucket_tail_interval.is_some();
        if self.inner.manager.lease() == LeaseState::None && !has_tail {
            return Ok(());
        }
        let ctx = RequestContext::new(TaskKind::WalReceiverConnectionHandler, DownloadBehavior::Error);
        timeline.flush(&ctx).await?;
        match timeline.disk_consistent_lsn() >= timeline.last_record_lsn() {
            true => Ok(()),
            false => Err(ManageError::Busy("what the branch has is not written to layers yet: try again".to_owned())),
        }
    }

    /// Releases the compute `writer`: everything it has sent is made durable, and the branch is free for another one.
    pub async fn release_writer(&self, timeline: &Timeline, writer: &str) -> Result<(), ManageError> {
        let _changing = self.inner.writers.lock().await;
        let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
        let before = WalSource::of(timeline)?;
        let known = before.and_then(|before| before.writer);
        match known {
            Some(known) if known.id == writer => {}
            Some(other) => {
                return Err(ManageError::Conflict(format!(
                    "compute {} writes timeline {id}, not this one",
                    other.name
                )));
            }
            None => return Err(ManageError::NotFound(format!("no compute writes timeline {id}"))),
        }
        self.halt((tenant, id)).await;
        self.write_out(timeline).await?;
        Ok(WalSource::forget(timeline).await?)
    }

    /// The writer of a timeline.
    pub fn writer(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<Writer> {
        self.inner.running.lock().get(&(tenant, timeline))?.receiver.source.writer.clone()
    }
}

fn check_free(timeline: TimelineId, before: Option<&WalSource>, replace: bool) -> Result<(), ManageError> {
    let Some(before) = before else { return Ok(()) };
    let host = before.host();
    match &before.writer {
        Some(_) if replace => Ok(()),
        Some(Writer { name, .. }) => Err(ManageError::Conflict(format!(
            "compute {name} at {host} writes timeline {timeline}: stop it first. If its host is lost, replace it: what \
             it has not sent is lost then"
        ))),
        None => Err(ManageError::Conflict(format!(
            "timeline {timeline} follows the server at {host}, which writes it: make a branch of it to write to"
        ))),
    }
}

fn check_end(timeline: &Timeline, writer: &Writer) -> Result<(), ManageError> {
    let (end, start) = (timeline.last_record_lsn(), writer.start_lsn);
    if end == start {
        return Ok(());
    }
    let name = &writer.name;
    Err(ManageError::Precondition(format!(
        "compute {name} starts at LSN {start}, and timeline {} ends at {end}: what it would write does not continue it",
        timeline.timeline_id()
    )))
}

/// Hides the connection string, which may contain a password.
impl std::fmt::Debug for NewWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewWriter").field("writer", &self.writer).field("slot", &self.slot).finish_non_exhaustive()
    }
}
