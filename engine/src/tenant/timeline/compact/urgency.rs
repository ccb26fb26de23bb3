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
    /// 1: just due. The most urgent job is next.
    pub(crate) times: f64,
    /// The same as far as ingest is slowed for it.
    late: f64,
    /// Bytes of the layers that these jobs would read.
    bytes: u64,
}

/// Cells whose images are due. All in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ImagesDue {
    /// What has changed.
    pub(crate) changes: u64,
    /// What of it a read may have to apply: a change that is long is an image itself.
    pub(crate) applied: u64,
    /// From how many changes on they are due.
    pub(crate) enough: u64,
    /// The same of all cells, due or not.
    pub(crate) enough_for_all: u64,
    /// Of the layers that making them would read.
    pub(crate) bytes: u64,
}

impl Urgency {
    /// Of images. One job of sorting brings a small database several times the changes from which on they are due:
    /// ingest is not slowed for that.
    pub(crate) fn of_images(due: ImagesDue, policy: &CompactionPolicy) -> Self {
        let times = |changes: u64, expected: u64| (changes as f64 / expected.max(1) as f64).max(1.0);
        let expected = due.enough + policy.job_bytes.saturating_sub(due.enough_for_all);
        Self { times: times(due.changes, due.enough), late: times(due.applied, expected), bytes: due.bytes }
    }

    /// Of merging stacks of which the tallest has `height` layers.
    pub(crate) fn of_merges(height: usize, bytes: u64, policy: &CompactionPolicy) -> Self {
        let times = 1.0 + height.saturating_sub(policy.height) as f64 / LAYERS;
        Self { times, late: times, bytes }
    }

    /// Of images at the cutoff below which are `garbage` bytes, and that and above which are `needed` ones.
    pub(crate) fn of_folds(garbage: u64, needed: u64, policy: &CompactionPolicy) -> Self {
        let beyond = garbage as f64 / needed.max(1) as f64 - policy.fold_percent as f64 / 100.0;
        let times = 1.0 + beyond.max(0.0) / GARBAGE;
        Self { times, late: times, bytes: garbage }
    }

    /// How much ingest is to be slowed: not at all, or up to wholly (1). Little if one job is all that is due.
    pub(crate) fn pressure(&self, policy: &CompactionPolicy) -> f64 {
        let overdue = (self.late - OVERDUE) / (OVERDUE_MAX - OVERDUE);
        let much = (self.bytes as f64 / policy.job_bytes.max(1) as f64).min(1.0);
        overdue.clamp(0.0, SLOWED_MAX) * much
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: CompactionPolicy =
        CompactionPolicy { height: 6, fold_percent: 30, job_bytes: 1000, ..CompactionPolicy::ON };

    /// Images of a database of which all cells are due.
    fn images(changes: u64, enough: u64, bytes: u64) -> Urgency {
        let due = ImagesDue { changes, applied: changes, enough, enough_for_all: enough, bytes };
        Urgency::of_images(due, &POLICY)
    }

    #[test]
    fn ingest_is_slowed_smoothly_as_jobs_are_overdue() {
        let images = |changes| images(changes, 1000, 5000).pressure(&POLICY);
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
        assert!(images(9000, 10, 1).pressure(&POLICY) < 0.001);
    }

    #[test]
    fn what_one_sort_brings_to_a_small_database_is_urgent_but_slows_nothing() {
        let images = |applied, enough, enough_for_all| {
            Urgency::of_images(ImagesDue { changes: 5000, applied, enough, enough_for_all, bytes: 5000 }, &POLICY)
        };
        assert_eq!((images(1200, 10, 10).times, images(1200, 10, 10).pressure(&POLICY)), (500.0, 0.0));
        assert!(images(3000, 10, 10).pressure(&POLICY) > 0.9, "what three of them bring does");
        assert_eq!(images(1000, 500, 1000).pressure(&POLICY), SLOWED_MAX, "of one that is not small nothing is added");
        assert_eq!(images(1000, 500, 700).pressure(&POLICY), 0.0);
    }
}
