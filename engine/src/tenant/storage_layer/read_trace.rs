//! Which layers a read has visited, and what each gave: recorded for a read that is to be explained.

use std::ops::Range;
use std::time::Duration;

use utils::id::TimelineId;
use utils::lsn::Lsn;

/// One step of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Visited {
    /// The timeline of the layer: that of the read, or one of its ancestors.
    pub timeline_id: TimelineId,
    /// The file's name, or "in memory".
    pub layer: String,
    /// The versions that were asked for.
    pub lsns: Range<Lsn>,
    /// Whether the layer was searched: the key filter of a delta layer may rule that out.
    pub searched: bool,
    /// How many key filters were asked: one for each single key.
    pub filters: u32,
    /// Whether the whole layer was on the local disk or in memory before.
    pub local: bool,
    /// Number of records found.
    pub records: usize,
    /// Whether an image was found, which ends the search.
    pub image: bool,
    /// Stored bytes of what was found.
    pub bytes: u64,
    /// How long that took, with waits for the disk or the bucket.
    pub took: Duration,
}

/// What a read has found in all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    /// Layers searched.
    pub(crate) searched: u32,
    /// Key filters asked.
    pub(crate) filters: u32,
    /// Records.
    pub(crate) records: usize,
    /// Images.
    pub(crate) images: usize,
    /// Stored bytes.
    pub(crate) bytes: u64,
}

impl Visited {
    /// A visit that changed what was found from `before` to `after`.
    pub(crate) fn new(timeline_id: TimelineId, layer: String, lsns: Range<Lsn>, (before, after): (Sums, Sums)) -> Self {
        Self {
            timeline_id,
            layer,
            lsns,
            searched: after.searched > before.searched,
            filters: after.filters - before.filters,
            local: true,
            records: after.records.saturating_sub(before.records),
            image: after.images > before.images,
            bytes: after.bytes.saturating_sub(before.bytes),
            took: Duration::ZERO,
        }
    }
}
