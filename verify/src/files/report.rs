//! The results of the comparison.

use parking_lot::Mutex;
use serde_json::json;
use utils::lsn::Lsn;

use super::compare::Verdict;

/// Counts, and the first differences.
#[derive(Debug)]
pub(super) struct Report {
    inner: Mutex<Inner>,
    max_examples: usize,
}

#[derive(Debug, Default)]
struct Inner {
    totals: Totals,
    examples: Vec<String>,
}

/// Counts of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    /// Equal after masking.
    equal: u64,
    /// Different, or existing on one side only. Includes relations and files that differ as a whole.
    different: u64,
    /// Pages of free space maps, which the WAL does not determine.
    unlogged: u64,
    /// Of the equal ones, map pages that lack content as on a standby.
    lost_maps: u64,
    /// Of the equal ones, pages whose LSN does not reflect the last image of a hint.
    older_hints: u64,
    /// Of the equal ones, pages that have the LSN of a hint record without an image.
    newer_hints: u64,
    /// Of the equal ones, pages that differ in what may be one of these, but whose history has been removed.
    forgotten: u64,
    /// Of the equal ones, commit timestamp pages with times that were not logged.
    unlogged_times: u64,
}

impl Report {
    /// An empty report that keeps up to `max_examples` differences.
    pub(super) fn new(max_examples: usize) -> Self {
        Self { inner: Mutex::default(), max_examples }
    }

    /// Counts a page; `place` describes its location if it differs.
    pub(super) fn count(&self, verdict: Verdict, place: impl FnOnce() -> String) {
        let what = match verdict {
            Verdict::Equal
            | Verdict::Unlogged
            | Verdict::LostInWal
            | Verdict::OlderHint
            | Verdict::NewerHint
            | Verdict::Forgotten
            | Verdict::UnloggedTime => return self.inner.lock().totals.count(verdict),
            Verdict::Different(at) => format!("differs from byte {at} on"),
            Verdict::OnlyStored => "is only in the timeline".to_owned(),
            Verdict::OnlyInFile => "is in the file only".to_owned(),
        };
        self.difference(format!("{} {what}", place()));
    }

    /// Counts an equal item.
    pub(super) fn same(&self) {
        self.inner.lock().totals.equal += 1;
    }

    /// Counts a difference.
    pub(super) fn difference(&self, text: String) {
        let mut inner = self.inner.lock();
        inner.totals.different += 1;
        if inner.examples.len() < self.max_examples {
            inner.examples.push(text);
        }
    }

    /// The results of a comparison as of `lsn`.
    pub(super) fn comparison(&self, lsn: Lsn) -> Comparison {
        let inner = self.inner.lock();
        let mut differences = inner.examples.clone();
        differences.sort();
        Comparison { lsn, totals: inner.totals, differences }
    }
}

/// The result of a comparison.
#[derive(Clone, Debug)]
pub struct Comparison {
    lsn: Lsn,
    totals: Totals,
    differences: Vec<String>,
}

impl Comparison {
    /// Number of pages and files that differ or exist on one side only.
    pub fn different(&self) -> u64 {
        self.totals.different
    }

    /// The described differences, sorted, one per line.
    pub fn differences(&self) -> &[String] {
        &self.differences
    }

    /// Number of differences that are counted but not described.
    pub fn left_out(&self) -> u64 {
        self.totals.different.saturating_sub(self.differences.len() as u64)
    }

    /// All counts and the described differences.
    pub fn to_json(&self) -> serde_json::Value {
        self.totals.to_json(self.lsn, &self.differences)
    }

    /// The counts in one sentence.
    pub fn summary(&self) -> String {
        self.totals.summary(self.lsn)
    }
}

impl Totals {
    /// Counts a page that does not differ.
    fn count(&mut self, verdict: Verdict) {
        let special = match verdict {
            Verdict::Unlogged => {
                self.unlogged += 1;
                return;
            }
            Verdict::LostInWal => Some(&mut self.lost_maps),
            Verdict::OlderHint => Some(&mut self.older_hints),
            Verdict::NewerHint => Some(&mut self.newer_hints),
            Verdict::Forgotten => Some(&mut self.forgotten),
            Verdict::UnloggedTime => Some(&mut self.unlogged_times),
            _ => None,
        };
        special.into_iter().for_each(|count| *count += 1);
        self.equal += 1;
    }

    fn compared(&self) -> u64 {
        self.equal + self.different
    }

    fn to_json(self, lsn: Lsn, differences: &[String]) -> serde_json::Value {
        json!({
            "lsn": lsn.to_string(), "compared": self.compared(), "equal": self.equal, "different": self.different,
            "unlogged": self.unlogged, "lost_maps": self.lost_maps, "older_hints": self.older_hints,
            "newer_hints": self.newer_hints, "forgotten": self.forgotten, "unlogged_times": self.unlogged_times,
            "differences": differences,
        })
    }

    fn summary(self, lsn: Lsn) -> String {
        format!(
            "verified as of LSN {lsn}: {} pages compared, {} equal, {} different \
             ({} maps of databases made by WAL lack what was not logged; {} have the LSN of an older hint, {} that \
             of one without image, {} one of before the history; {} have commit times that were not logged; {} of \
             free space maps passed over)",
            self.compared(),
            self.equal,
            self.different,
            self.lost_maps,
            self.older_hints,
            self.newer_hints,
            self.forgotten,
            self.unlogged_times,
            self.unlogged
        )
    }
}
