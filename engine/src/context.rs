//! The context of a request: on whose behalf it runs and what it may do.

use std::time::Duration;

use crate::task_mgr::TaskKind;
use traces::Trace;

/// What to do about a layer that is only in the bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DownloadBehavior {
    /// Fetch it.
    Download,
    /// Fetch it and log the fact.
    Warn,
    /// Fail.
    Error,
}

/// On whose behalf I/O is done, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Not specified.
    Unset,
    /// Tools and benchmarks.
    DebugTools,
}

/// How much of the local disk a read or a writer of layers may keep busy at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pace {
    /// As much as it takes to be fast.
    #[default]
    Full,
    /// Little, as of jobs that nobody waits for: what somebody else reads waits in the device's queue behind all of it.
    GivesWay,
}

/// Passed through a request by reference.
#[derive(Clone, Debug)]
pub struct RequestContext {
    task_kind: TaskKind,
    download_behavior: DownloadBehavior,
    scope: Scope,
    pace: Pace,
    waited: Duration,
    trace: Option<Trace>,
}

impl RequestContext {
    /// A context for a task of this kind.
    pub fn new(task_kind: TaskKind, download_behavior: DownloadBehavior) -> Self {
        let (scope, pace) = (Scope::Unset, Pace::Full);
        Self { task_kind, download_behavior, scope, pace, waited: Duration::ZERO, trace: None }
    }

    /// The same context, with its I/O attributed to tools.
    pub fn with_scope_debug_tools(&self) -> Self {
        Self { scope: Scope::DebugTools, ..self.clone() }
    }

    /// The same context, for reads at another pace.
    pub(crate) fn at_pace(&self, pace: Pace) -> Self {
        Self { pace, ..self.clone() }
    }

    /// How much of the local disk its reads may keep busy.
    pub(crate) fn pace(&self) -> Pace {
        self.pace
    }

    /// The same context, for a request that has waited so long before it could begin.
    pub fn having_waited(&self, waited: Duration) -> Self {
        Self { waited, ..self.clone() }
    }

    /// How long the request had to wait before it could begin.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// The same context, for a request of which parts are noted, if it has a trace.
    pub fn with_trace(&self, trace: Option<Trace>) -> Self {
        Self { trace, ..self.clone() }
    }

    /// Where parts of the request are noted, if they are.
    pub(crate) fn trace(&self) -> Option<&Trace> {
        self.trace.as_ref()
    }

    /// The kind of task that makes the request.
    pub fn task_kind(&self) -> TaskKind {
        self.task_kind
    }

    /// Whether somebody wants the pages, who may want them again; not so of reads that look at everything.
    pub(crate) fn shows_interest(&self) -> bool {
        !matches!(self.task_kind, TaskKind::GarbageCollector | TaskKind::Scrub)
    }

    /// What to do about layers that are not resident.
    pub fn download_behavior(&self) -> DownloadBehavior {
        self.download_behavior
    }

    /// On whose behalf I/O is done.
    pub fn scope(&self) -> Scope {
        self.scope
    }
}
