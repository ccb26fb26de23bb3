//! The report and the progress of a scrub.

use std::sync::atomic::{AtomicU64, Ordering};

use pageserver_api::shard::TenantShardId;
use serde::Serialize;
use utils::id::TimelineId;
use utils::lsn::Lsn;

/// Where a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On the local disk.
    Local,
    /// In the bucket.
    Bucket,
}

/// The kind of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Its content is not what was written, or it is another file or object.
    Damaged,
    /// It is named but does not exist.
    Missing,
    /// It exists but nothing names it.
    Orphan,
    /// It could not be read this time; its state is unknown.
    Unread,
}

/// A defect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where it is.
    pub place: Place,
    /// Its kind.
    pub kind: Kind,
    /// The file's path, or the object's name.
    pub name: String,
    /// Why it is considered a defect.
    pub reason: String,
    /// Size in bytes, as far as known.
    pub bytes: u64,
    /// Repaired, or removed if it was an orphan.
    pub fixed: bool,
}

/// A layer without a good copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The timeline.
    pub timeline_id: TimelineId,
    /// The timeline's history is incomplete from this LSN on.
    pub from_lsn: Lsn,
    /// Name of the layer.
    pub layer: String,
}

/// The result of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The tenant.
    pub tenant_id: TenantShardId,
    /// Timelines scrubbed.
    pub timelines: u64,
    /// Local files read.
    pub files: u64,
    /// Objects read.
    pub objects: u64,
    /// Bytes read, from disk and bucket.
    pub bytes: u64,
    /// All defects found.
    pub findings: Vec<Finding>,
    /// Layers that have no good copy any more.
    pub lost: Vec<Lost>,
}

impl Report {
    pub(super) fn new(tenant_id: TenantShardId) -> Self {
        Self { tenant_id, timelines: 0, files: 0, objects: 0, bytes: 0, findings: Vec::new(), lost: Vec::new() }
    }

    /// Number of findings of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.findings.iter().filter(|finding| finding.kind == kind).count()
    }

    /// Number of findings that were fixed.
    pub fn fixed(&self) -> usize {
        self.findings.iter().filter(|finding| finding.fixed).count()
    }

    /// Whether everything named exists and is intact now. Orphans are harmless.
    pub fn is_sound(&self) -> bool {
        self.lost.is_empty() && self.findings.iter().all(|finding| finding.fixed || finding.kind == Kind::Orphan)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        tracing::info!("{:?} in {:?}: {}: {}", finding.kind, finding.place, finding.name, finding.reason);
        self.findings.push(finding);
    }
}

/// The progress of a scrub, readable from other tasks while it runs.
#[derive(Debug, Default)]
pub struct Progress {
    files: AtomicU64,
    objects: AtomicU64,
    bytes: AtomicU64,
    planned: AtomicU64,
}

impl Progress {
    /// Local files read so far.
    pub fn files(&self) -> u64 {
        self.files.load(Ordering::Relaxed)
    }

    /// Objects read so far.
    pub fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }

    /// Bytes read so far.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes to be read for the timelines begun so far.
    pub fn planned(&self) -> u64 {
        self.planned.load(Ordering::Relaxed)
    }

    pub(super) fn plan(&self, bytes: u64) {
        self.planned.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn note(&self, place: Place, bytes: u64) {
        match place {
            Place::Local => &self.files,
            Place::Bucket => &self.objects,
        }
        .fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
