//! Requested scrubs, which run in the background, one per tenant at a time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use pageserver_api::shard::TenantShardId;
use parking_lot::Mutex;
use serde::Serialize;
use utoipa::ToSchema;

use engine::tenant::manager::{ManageError, TenantManager};
use engine::tenant::scrub::{self, Options, Progress, Report, Subject};

/// Progress of a scrub, or its result.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ScrubAnswer {
    /// Running, Done, or Failed.
    pub(crate) state: &'static str,
    /// Local files read so far.
    pub(crate) files: u64,
    /// Objects read so far.
    pub(crate) objects: u64,
    /// Bytes read so far.
    pub(crate) bytes: u64,
    /// Bytes to read in the timelines started so far.
    pub(crate) planned_bytes: u64,
    /// Whether everything that is referenced exists and is intact; null until the scrub is done.
    pub(crate) sound: Option<bool>,
    /// The findings; null until the scrub is done.
    #[schema(value_type = Option<Object>)]
    pub(crate) report: Option<Report>,
    /// Why it failed.
    pub(crate) error: Option<String>,
}

#[derive(Debug, Default)]
struct Job {
    progress: Arc<Progress>,
    result: Mutex<Option<Result<Report, String>>>,
}

impl Job {
    fn answer(&self) -> ScrubAnswer {
        let result = self.result.lock();
        let report = result.as_ref().and_then(|result| result.as_ref().ok());
        ScrubAnswer {
            state: match &*result {
                None => "Running",
                Some(Ok(_)) => "Done",
                Some(Err(_)) => "Failed",
            },
            files: self.progress.files(),
            objects: self.progress.objects(),
            bytes: self.progress.bytes(),
            planned_bytes: self.progress.planned(),
            sound: report.map(Report::is_sound),
            report: report.cloned(),
            error: result.as_ref().and_then(|result| result.as_ref().err().cloned()),
        }
    }
}

/// The last scrub of each tenant.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    jobs: Mutex<HashMap<TenantShardId, Arc<Job>>>,
}

impl Scrubs {
    /// Starts a scrub.
    ///
    /// # Errors
    /// [`ManageError::Conflict`] while a scrub of the same tenant is running.
    pub(crate) fn start(
        &self,
        manager: &TenantManager,
        tenant: TenantShardId,
        options: Options,
    ) -> Result<ScrubAnswer, ManageError> {
        let subject = Subject {
            conf: manager.conf(),
            tenant,
            open: manager.timelines(tenant)?,
            generation: manager.remote_of(tenant).map(|remote| remote.generation()),
            exclusive: false,
        };
        let job = Arc::new(Job::default());
        let mut jobs = self.jobs.lock();
        if jobs.get(&tenant).is_some_and(|job| job.result.lock().is_none()) {
            return Err(ManageError::Conflict(format!("tenant {tenant} is being scrubbed")));
        }
        jobs.insert(tenant, Arc::clone(&job));
        let (running, panicked, manager) = (Arc::clone(&job), Arc::clone(&job), manager.clone());
        let work = async move {
            let result = scrub::scrub(&subject, options, &running.progress).await;
            let (found, fixed) = result.as_ref().map_or((0, 0), |report| (report.findings.len(), report.fixed()));
            if found > 0 {
                tracing::warn!(%tenant, "a scrub has found {found} things that are not as they should be");
            }
            if fixed > 0
                && let Err(error) = manager.reopen(tenant).await
            {
                tracing::warn!(%tenant, "what a scrub has mended is opened at the next start: {error}");
            }
            *running.result.lock() = Some(result.map_err(|error| error.to_string()));
        };
        env::spawn::watched("scrub", work, move |reason| *panicked.result.lock() = Some(Err(reason)));
        drop(jobs);
        Ok(job.answer())
    }

    /// Progress or result of the tenant's last scrub.
    pub(crate) fn status(&self, tenant: TenantShardId) -> Option<ScrubAnswer> {
        self.jobs.lock().get(&tenant).map(|job| job.answer())
    }
}

/// Minimum age of an orphan: anything younger may be about to be referenced.
pub(crate) const GRACE: Duration = Duration::from_secs(3600);
