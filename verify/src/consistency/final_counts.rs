//! Counts of the final comparison of replayed pages with the files that the server left.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Maximum number of differences described; all are counted.
const DESCRIBED: usize = 40;

/// Comparison of pages with the files of the stopped server.
#[derive(Debug, Default)]
pub(super) struct FinalCounts {
    /// Equal pages by kind.
    pub(super) equal: BTreeMap<String, u64>,
    pub(super) different: u64,
    pub(super) problems: Vec<String>,
    /// Pages of relations that were dropped, or of SLRUs that were truncated.
    pub(super) absent: u64,
    /// Pages of free space maps, which the WAL does not determine.
    pub(super) unlogged: u64,
}

impl FinalCounts {
    pub(super) fn equal(&mut self, kind: String) {
        *self.equal.entry(kind).or_default() += 1;
    }

    pub(super) fn different(&mut self, problem: String) {
        self.different += 1;
        if self.problems.len() < DESCRIBED {
            self.problems.push(problem);
        }
    }

    pub(super) fn compared(&self) -> u64 {
        self.equal.values().sum::<u64>() + self.different
    }

    pub(super) fn to_json(&self) -> Value {
        json!({
            "compared": self.compared(), "different": self.different, "absent": self.absent,
            "unlogged": self.unlogged, "equal": self.equal,
        })
    }
}
