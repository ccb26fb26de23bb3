//! What the comparison found.

use parking_lot::Mutex;
use serde_json::json;
use utils::lsn::Lsn;

use super::compare::Verdict;

/// Differences that are printed.
const MAX_EXAMPLES: usize = 50;

/// Counts, and the first differences.
#[derive(Debug, Default)]
pub(super) struct Report {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    totals: Totals,
    examples: Vec<String>,
}

/// Counts of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Equal after masking.
    pub(super) equal: u64,
    /// Different, or on one side only. Also relations and files that differ as a whole.
    pub(super) different: u64,
    /// Pages of free space maps, which the WAL does not determine.
    pub(super) unlogged: u64,
    /// Of the equal ones, visibility map pages that lack bits as on a standby.
    pub(super) lost_maps: u64,
    /// Of the equal ones, pages on which two sessions logged hints at once.
    pub(super) older_hints: u64,
}

impl Report {
    /// Counts a page; `place` names it if it differs.
    pub(super) fn count(&self, verdict: Verdict, place: impl FnOnce() -> String) {
        let what = match verdict {
            Verdict::Equal => {
                self.inner.lock().totals.equal += 1;
                return;
            }
            Verdict::Unlogged => {
                self.inner.lock().totals.unlogged += 1;
                return;
            }
            Verdict::LostInWal => {
                let totals = &mut self.inner.lock().totals;
                totals.equal += 1;
                totals.lost_maps += 1;
                return;
            }
            Verdict::OlderHint => {
                let totals = &mut self.inner.lock().totals;
                totals.equal += 1;
                totals.older_hints += 1;
                return;
            }
            Verdict::Different(at) => format!("differs from byte {at} on"),
            Verdict::OnlyStored => "is in the store only".to_owned(),
            Verdict::OnlyInFile => "is in the file only".to_owned(),
        };
        self.difference(format!("{} {what}", place()));
    }

    /// Counts something that is the same.
    pub(super) fn same(&self) {
        self.inner.lock().totals.equal += 1;
    }

    /// Counts a difference.
    pub(super) fn difference(&self, text: String) {
        let mut inner = self.inner.lock();
        inner.totals.different += 1;
        if inner.examples.len() < MAX_EXAMPLES {
            inner.examples.push(text);
        }
    }

    pub(super) fn examples(&self) -> Vec<String> {
        let mut examples = self.inner.lock().examples.clone();
        examples.sort();
        examples
    }

    pub(super) fn totals(&self) -> Totals {
        self.inner.lock().totals
    }
}

impl Totals {
    fn compared(&self) -> u64 {
        self.equal + self.different
    }

    pub(super) fn to_json(self, lsn: Lsn, differences: &[String]) -> serde_json::Value {
        json!({
            "lsn": lsn.to_string(), "compared": self.compared(), "equal": self.equal, "different": self.different,
            "unlogged": self.unlogged, "lost_maps": self.lost_maps,
            "older_hints": self.older_hints, "differences": differences,
        })
    }

    pub(super) fn summary(self, lsn: Lsn) -> String {
        format!(
            "verified as of LSN {lsn}: {} pages compared, {} equal, {} different \
             ({} maps of databases made by WAL lack bits that were not logged; {} have the LSN of an older hint; \
             {} of free space maps passed over)",
            self.compared(),
            self.equal,
            self.different,
            self.lost_maps,
            self.older_hints,
            self.unlogged
        )
    }
}
