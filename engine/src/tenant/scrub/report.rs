//! What a scrub has seen, and how far it is.

use std::sync::atomic::{AtomicU64, Ordering};

use pageserver_api::shard::TenantShardId;
use serde::Serialize;
use utils::id::TimelineId;
use utils::lsn::Lsn;

/// Where something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// On the local disk.
    Local,
    /// In the bucket.
    Bucket,
}

/// What is the matter with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Its bytes are not what was written, or it is something else.
    Damaged,
    /// It is named, and not there.
    Missing,
    /// It is there, and nothing names it.
    Orphan,
    /// It could not be read just now; nothing is known of it.
    Unread,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// What.
    pub kind: Kind,
    /// The file's path, or the object's name.
    pub name: String,
    /// Why it was noticed.
    pub reason: String,
    /// Size in bytes, as far as is known.
    pub bytes: u64,
    /// Repaired, or removed if it was an orphan.
    pub fixed: bool,
}

/// A layer of which there is no good copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Lost {
    /// The timeline.
    pub timeline_id: TimelineId,
    /// Its history is not complete from here on.
    pub from_lsn: Lsn,
    /// Name of the layer.
    pub layer: String,
}

/// The result of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The tenant.
    pub tenant_id: TenantShardId,
    /// Timelines looked at.
    pub timelines: u64,
    /// Local files read.
    pub files: u64,
    /// Objects read.
    pub objects: u64,
    /// Bytes read, here and there.
    pub bytes: u64,
    /// Whatever is not as it should be.
    pub findings: Vec<Finding>,
    /// What has no good copy any more.
    pub lost: Vec<Lost>,
}

impl Report {
    pub(super) fn new(tenant_id: TenantShardId) -> Self {
        Self { tenant_id, timelines: 0, files: 0, objects: 0, bytes: 0, findings: Vec::new(), lost: Vec::new() }
    }

    /// Findings of a kind.
    pub fn count(&self, kind: Kind) -> usize {
        self.findings.iter().filter(|finding| finding.kind == kind).count()
    }

    /// Findings that were set right.
    pub fn fixed(&self) -> usize {
        self.findings.iter().filter(|finding| finding.fixed).count()
    }

    /// Whether everything that is named is there and whole, now. Orphans do no harm.
    pub fn is_sound(&self) -> bool {
        self.lost.is_empty() && self.findings.iter().all(|finding| finding.fixed || finding.kind == Kind::Orphan)
    }

    pub(super) fn add(&mut self, finding: Finding) {
        tracing::info!("{:?} in {:?}: {}: {}", finding.kind, finding.place, finding.name, finding.reason);
        self.findings.push(finding);
    }
}

/// How far a scrub is. Read from other tasks while it goes on.
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

    /// Bytes that will be read, of the timelines begun so far.
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
