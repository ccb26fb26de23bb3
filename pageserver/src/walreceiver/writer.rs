//! Computes as writers: whoever writes a branch is registered with it, and there is one at most.
//!
//! A compute starts where its branch ends, and what it writes from there on comes by replication, whichever timeline of
//! its own Postgres is on. So it may only be registered while the branch ends where the compute begins: at its start,
//! or when it comes back after it was released. The registration is stored with the timeline, and outlives both
//! servers.

use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::WalReceivers;
use super::source::WalSource;
use crate::tenant::manager::ManageError;
use crate::tenant::timeline::Timeline;

/// A compute that writes a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// What tells it from all others.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// Its WAL is taken from here on.
    pub start_lsn: Lsn,
}

/// A compute that wants to write a branch.
#[derive(Clone)]
pub struct NewWriter {
    /// The compute.
    pub writer: Writer,
    /// How to reach it.
    pub connstr: String,
    /// The replication slot to use there.
    pub slot: String,
    /// Take the place of another compute, whose host is lost. What it has not sent is lost, too.
    pub replace: bool,
}

impl WalReceivers {
    /// Registers a compute and follows it. The same compute again only says anew how to reach it.
    ///
    /// # Errors
    /// [`ManageError::Conflict`] if another server writes the timeline; [`ManageError::Precondition`] if the timeline
    /// does not end where the compute starts.
    pub async fn register_writer(&self, timeline: &Timeline, new: NewWriter) -> Result<(), ManageError> {
        let _changing = self.inner.writers.lock().await;
        let id = (timeline.tenant_shard_id(), timeline.timeline_id());
        if let Some(reason) = timeline.fenced().or_else(|| timeline.broken()) {
            return Err(ManageError::Busy(format!("timeline {} takes no more writes: {reason}", id.1)));
        }
        let mut source = WalSource::new(&new.connstr, &new.slot)?;
        let before = WalSource::load(timeline.dir()).await?;
        let known = before.as_ref().and_then(|before| before.writer.as_ref());
        if let Some(same) = known.filter(|known| known.id == new.writer.id) {
            source.writer = Some(Writer { start_lsn: same.start_lsn, ..new.writer });
        } else {
            check_free(id.1, before.as_ref(), new.replace)?;
            // What it has sent so far is taken in: then it is known where the timeline ends.
            self.stop(id.0, id.1).await;
            if let Err(error) = check_end(timeline, &new.writer) {
                if let Some(before) = before {
                    self.start(timeline.clone(), before).await;
                }
                return Err(error);
            }
            source.writer = Some(new.writer);
        }
        source.store(timeline.dir()).await?;
        timeline.source_changed().await?;
        self.start(timeline.clone(), source).await;
        Ok(())
    }

    /// Ends the registration of the compute `writer`: all that it has sent is made durable, and the branch is free.
    pub async fn release_writer(&self, timeline: &Timeline, writer: &str) -> Result<(), ManageError> {
        let _changing = self.inner.writers.lock().await;
        let (tenant, id) = (timeline.tenant_shard_id(), timeline.timeline_id());
        let before = WalSource::load(timeline.dir()).await?;
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
        self.stop(tenant, id).await;
        WalSource::forget(timeline.dir()).await?;
        Ok(timeline.source_changed().await?)
    }

    /// The compute that writes a timeline.
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

/// The connection string may hold a password.
impl std::fmt::Debug for NewWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewWriter").field("writer", &self.writer).field("slot", &self.slot).finish_non_exhaustive()
    }
}
