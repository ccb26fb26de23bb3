//! Starting to follow a live server: from a connection string to a timeline that streams the server's WAL.
//!
//! The work runs in the background: checks, a physical slot that retains the WAL from now on, a base backup written
//! directly into image layers, the timeline, its WAL receiver. If any step fails or is cancelled, the slot and
//! everything written are removed.
//!
//! If the process dies in the middle, its next start removes the files. The slot remains and keeps retaining WAL on
//! the server: a repeated request (with the same timeline id, if the slot's name was not given) drops it and starts
//! over. A slot whose name was given is never taken over: drop it by hand.

mod checks;
mod error;
mod job;
mod status;
mod synchrony;

use std::collections::HashMap;
use std::sync::Arc;

use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};

use crate::walreceiver::{WalReceivers, WalSource};
use engine::tenant::manager::{ManageError, TenantManager};
use job::Job;
use status::StatusCell;
pub use status::{FollowPhase, FollowStatus};

/// Which server to follow, and the ids of the new timeline.
#[derive(Clone)]
pub struct FollowRequest {
    /// Connection string of the server.
    pub connstr: String,
    /// Tenant; by default a new one.
    pub tenant_id: Option<TenantId>,
    /// Timeline, which must not exist; by default a new one.
    pub timeline_id: Option<TimelineId>,
    /// Name of the replication slot to create, which must not exist; `pageserver_<timeline>` by default.
    pub slot: Option<String>,
}

type Id = (TenantShardId, TimelineId);

/// Starts to follow servers. Cheap to clone.
#[derive(Clone)]
pub struct FollowJobs {
    inner: Arc<Inner>,
}

struct Inner {
    manager: TenantManager,
    receivers: WalReceivers,
    jobs: Mutex<HashMap<Id, Started>>,
    cancel: CancellationToken,
}

struct Started {
    job: Arc<Job>,
    task: Option<JoinHandle<()>>,
}

impl FollowJobs {
    /// Adds timelines to `manager`, and receives their WAL through `receivers`.
    pub fn new(manager: TenantManager, receivers: WalReceivers) -> Self {
        let (jobs, cancel) = Default::default();
        Self { inner: Arc::new(Inner { manager, receivers, jobs, cancel }) }
    }

    /// Starts to follow a server; [`FollowJobs::status`] returns the progress.
    ///
    /// # Errors
    /// [`ManageError::Storage`] of kind `Invalid` if the request is invalid; [`ManageError::Conflict`] if the
    /// timeline exists or its base backup is in progress.
    pub fn start(&self, request: FollowRequest) -> Result<(TenantShardId, TimelineId), ManageError> {
        let tenant = TenantShardId::unsharded(request.tenant_id.unwrap_or_else(TenantId::generate));
        let timeline = request.timeline_id.unwrap_or_else(TimelineId::generate);
        let own_slot = format!("pageserver_{timeline}");
        let slot = request.slot.as_deref().unwrap_or(&own_slot);
        let slot_is_ours = slot == own_slot;
        let source = WalSource::new(&request.connstr, slot)?;
        match self.inner.manager.get(tenant, timeline) {
            Ok(_) => return Err(ManageError::Conflict(format!("timeline {timeline} exists already"))),
            Err(ManageError::NotFound(_)) => {}
            Err(other) => return Err(other),
        }
        let mut jobs = self.inner.jobs.lock();
        if jobs.get(&(tenant, timeline)).is_some_and(|started| started.job.status.is_under_way()) {
            return Err(ManageError::Conflict(format!("timeline {timeline} is being followed already")));
        }
        if self.inner.cancel.is_cancelled() {
            return Err(ManageError::Busy("shutting down".to_owned()));
        }
        let (manager, receivers) = (self.inner.manager.clone(), self.inner.receivers.clone());
        let (cancel, status) = (self.inner.cancel.child_token(), StatusCell::default());
        let job = Arc::new(Job { manager, receivers, tenant, timeline, source, slot_is_ours, cancel, status });
        let panicked = Arc::clone(&job);
        let task = env::spawn::watched("follow", job::run(Arc::clone(&job)), move |reason| panicked.note_panic(reason));
        let task = Some(task);
        jobs.insert((tenant, timeline), Started { job, task });
        Ok((tenant, timeline))
    }

    /// The progress or outcome of a request, if it was made since the process started.
    pub fn status(&self, tenant: TenantShardId, timeline: TimelineId) -> Option<FollowStatus> {
        Some(self.inner.jobs.lock().get(&(tenant, timeline))?.job.status.read())
    }

    /// Cancels the work on a timeline, and waits until everything it created is removed. A completed timeline stays.
    pub async fn cancel(&self, tenant: TenantShardId, timeline: TimelineId) {
        let task = self.inner.jobs.lock().get_mut(&(tenant, timeline)).and_then(|started| {
            started.job.cancel.cancel();
            started.task.take()
        });
        finish(task).await;
    }

    /// Cancels everything.
    pub async fn shutdown(&self) {
        self.inner.cancel.cancel();
        let tasks: Vec<_> = self.inner.jobs.lock().values_mut().map(|started| started.task.take()).collect();
        for task in tasks {
            finish(task).await;
        }
    }
}

async fn finish(task: Option<JoinHandle<()>>) {
    if let Some(Err(error)) = match task {
        Some(task) => Some(task.await),
        None => None,
    } {
        tracing::error!("following a server failed: {error}");
    }
}

/// Hides the connection string, which may contain a password.
impl std::fmt::Debug for FollowRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { connstr: _, tenant_id, timeline_id, slot } = self;
        f.debug_struct("FollowRequest")
            .field("tenant_id", tenant_id)
            .field("timeline_id", timeline_id)
            .field("slot", slot)
            .finish_non_exhaustive()
    }
}
