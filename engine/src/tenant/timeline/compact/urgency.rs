//! How overdue jobs other than sorts are: which of them is next, and how much ingest is slowed. Pure functions.

use crate::config::CompactionPolicy;

/// A stack that is taller than it may be by so many layers is overdue once more.
const LAYERS: f64 = 4.0;
/// So is garbage that has so much of what is needed beyond what the policy allows.
const GARBAGE: f64 = 0.15;
/// Ingest is slowed for jobs that are overdue so many times, and almost stopped for those that are
/// [`OVERDUE_MAX`] times.
const OVERDUE: f64 = 1.25;
const OVERDUE_MAX: f64 = 2.0;
/// Never wholly for jobs other than sorts: they may take long, and nothing is lost without them.
const SLOWED_MAX: f64 = 0.95;

/// How overdue the jobs of one kind are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Urgency {
    /// 1: just due.
    pub(crate) times: f64,
    /// Bytes of the layers that these jobs would read.
    bytes: u64,
}

impl Urgency {
    /// Of images of cells with `changes`, which are due when these are `enough`. All in bytes.
    pub(crate) fn of_images(changes: u64, enough: u64, bytes: u64) -> Self {
        Self { times: (changes as f64 / enough.max(1) as f64).max(1.0), bytes }
    }

    /// Of merging stacks of which the tallest has `height` layers.
    pub(crate) fn of_merges(height: usize, bytes: u64, policy: &CompactionPolicy) -> Self {
        Self { times: 1.0 + height.saturating_sub(policy.height) as f64 / LAYERS, bytes }
    }

    /// Of images at the cutoff below which are `garbage` bytes, and that and above which are `needed` ones.
    pub(crate) fn of_folds(garbage: u64, needed: u64, policy: &CompactionPolicy) -> Self {
        let beyond = garbage as f64 / needed.max(1) as f64 - policy.fold_percent as f64 / 100.0;
        Self { times: 1.0 + beyond.max(0.0) / GARBAGE, bytes: garbage }
    }

    /// How much ingest is to be slowed: not at all, or up to wholly (1). Little if one job is all that is due.
    pub(crate) fn pressure(&self, policy: &CompactionPolicy) -> f64 {
        let overdue = (self.times - OVERDUE) / (OVERDUE_MAX - OVERDUE);
        let much = (self.bytes as f64 / policy.job_bytes.max(1) as f64).min(1.0);
        overdue.clamp(0.0, SLOWED_MAX) * much
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: CompactionPolicy =
        CompactionPolicy { height: 6, fold_percent: 30, job_bytes: 1000, ..CompactionPolicy::ON };

    #[test]
    fn ingest_is_slowed_smoothly_as_jobs_are_overdue() {
        let images = |changes| Urgency::of_images(changes, 1000, 5000).pressure(&POLICY);
        let pressures: Vec<f64> = (0..5000).step_by(50).map(images).collect();
        assert!(pressures.is_sorted() && pressures.first() == Some(&0.0) && pressures.last() == Some(&SLOWED_MAX));
        assert!(pressures.windows(2).all(|pair| pair[1] - pair[0] < 0.08), "{pressures:?}");
        assert_eq!(images(1250), 0.0);
        assert!(images(1300) > 0.0);
        let merges = [6, 7, 9, 30].map(|height| Urgency::of_merges(height, 5000, &POLICY).pressure(&POLICY));
        assert!(merges[1] == 0.0 && merges[2] > 0.3 && merges.is_sorted() && merges[3] == SLOWED_MAX, "{merges:?}");
        let folds = [30, 33, 45, 90].map(|garbage| Urgency::of_folds(100 * garbage, 10_000, &POLICY).pressure(&POLICY));
        assert!(folds[1] == 0.0 && folds[2] > 0.3 && folds.is_sorted() && folds[3] == SLOWED_MAX, "{folds:?}");
    }

    #[test]
    fn a_few_changes_slow_nothing() {
        assert!(Urgency::of_images(900, 10, 1).pressure(&POLICY) < 0.001);
    }
}
