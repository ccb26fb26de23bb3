//! How well a timeline is compacted, what is owed, why nothing is done about it, and what keeps space from coming back:
//! for answers, and in words.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use utils::lsn::Lsn;
use utoipa::ToSchema;

use super::ids::LsnText;
use engine::tenant::timeline::{self, Activity, ratio};
use metrics::{CompactionJob, LabelEnum};

/// Bytes that wait to be freed, by what they wait for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct WaitingBytes {
    /// Files of layers that were replaced or removed: that somebody still reads them.
    pub(crate) read: u64,
    /// Objects of such layers: that an index part without them is confirmed.
    pub(crate) unconfirmed: u64,
    /// History that nothing keeps: that it is removed. About: branches made since the last look are not known.
    pub(crate) history: u64,
}

/// An LSN that is kept below the cutoff, or the cutoff itself.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct PinnedLsn {
    /// The LSN.
    #[schema(value_type = LsnText)]
    pub(crate) lsn: Lsn,
    /// What keeps it: the cutoff, branches, leases, holds, reads in progress.
    pub(crate) why: String,
    /// Number of layers that are there for this LSN alone.
    pub(crate) layers: usize,
    /// Their bytes.
    pub(crate) bytes: u64,
}

/// What was found when it was last looked for history that nothing keeps.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoryLook {
    /// How many seconds ago that was.
    pub(crate) seconds_ago: u64,
    /// Below this LSN only single ones are kept.
    #[schema(value_type = LsnText)]
    pub(crate) cutoff: Lsn,
    /// What keeps the cutoff from being later.
    pub(crate) bound_by: String,
    /// What is kept at the cutoff and below it.
    pub(crate) points: Vec<PinnedLsn>,
}

/// How well a timeline is compacted. What was counted was counted since the timeline was opened.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Condition {
    /// running; due; deferred: due since before the start, until something changes; idle: nothing is due; off; waits:
    /// for the job of another timeline; no room: on the disk; failed; read-only: the timeline takes no writes; or
    /// archived, and nothing is due.
    pub(crate) state: &'static str,
    /// Which job runs, or why none does, in words.
    pub(crate) reason: String,
    /// After a failure: in how many seconds the next attempt is made.
    pub(crate) again_in_seconds: Option<u64>,
    /// Bytes that jobs would read that are due, by kind.
    pub(crate) debt_bytes: BTreeMap<&'static str, u64>,
    /// How many seconds ago a job of each kind last ended well; null if none has.
    pub(crate) seconds_since: BTreeMap<&'static str, Option<u64>>,
    /// Bytes of values that WAL brought.
    pub(crate) value_bytes: u64,
    /// Bytes of layers that flushes wrote.
    pub(crate) flushed_bytes: u64,
    /// Bytes written for each byte of values: by `flush`, by each kind of job, and in `total`. Null if no values came.
    pub(crate) write_amplification: BTreeMap<&'static str, Option<f64>>,
    /// Bytes of the newest images of all keys.
    pub(crate) newest_image_bytes: u64,
    /// Bytes stored for each byte of these; null if there are none.
    pub(crate) space_ratio: Option<f64>,
    /// Bytes that wait to be freed.
    pub(crate) waiting_bytes: WaitingBytes,
    /// What was found when it was last looked for history that nothing keeps; null if that was never since the start.
    pub(crate) history: Option<HistoryLook>,
    /// How many seconds ago history was last removed; null if none was since the start.
    pub(crate) seconds_since_removal: Option<u64>,
}

impl From<timeline::Condition> for Condition {
    fn from(from: timeline::Condition) -> Self {
        let Words { state, reason, again } = Words::of(&from.activity);
        let written = |bytes: u64| ratio(bytes, from.taken_in).map(rounded);
        let mut amplification: BTreeMap<&'static str, Option<f64>> =
            jobs().map(|kind| (kind.text(), written(from.counts.of(kind).bytes_out))).collect();
        amplification.extend([("flush", written(from.flushed)), ("total", from.write_amplification().map(rounded))]);
        let since = |kind: CompactionJob| Some(from.since_jobs.get(kind.number()).copied()??.as_secs());
        let history = from.look.as_ref().map(|look| HistoryLook {
            seconds_ago: env::clock::now().saturating_duration_since(look.at).as_secs(),
            cutoff: look.cutoff,
            bound_by: look.bound_by.clone(),
            points: look.points.iter().cloned().map(PinnedLsn::from).collect(),
        });
        Self {
            state,
            reason,
            again_in_seconds: again.map(|again| again.as_secs()),
            debt_bytes: jobs().map(|kind| (kind.text(), from.debt.of(kind))).collect(),
            seconds_since: jobs().map(|kind| (kind.text(), since(kind))).collect(),
            value_bytes: from.taken_in,
            flushed_bytes: from.flushed,
            write_amplification: amplification,
            newest_image_bytes: from.images,
            space_ratio: from.space_ratio().map(rounded),
            waiting_bytes: WaitingBytes {
                read: from.waiting.read,
                unconfirmed: from.waiting.unconfirmed,
                history: from.waiting.history,
            },
            history,
            seconds_since_removal: from.since_removal.map(|since| since.as_secs()),
        }
    }
}

impl From<timeline::Pinned> for PinnedLsn {
    fn from(from: timeline::Pinned) -> Self {
        let timeline::Pinned { lsn, why, layers, bytes } = from;
        Self { lsn, why, layers, bytes }
    }
}

/// All kinds of jobs.
fn jobs() -> impl Iterator<Item = CompactionJob> {
    CompactionJob::ALL.iter().copied()
}

/// To three digits after the point: more would not tell more.
fn rounded(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// What compaction does, or why nothing, in words.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) state: &'static str,
    pub(super) reason: String,
    pub(super) again: Option<Duration>,
}

impl Words {
    /// All states.
    pub(super) const STATES: [&str; 10] =
        ["running", "due", "deferred", "idle", "off", "waits", "no room", "failed", "read-only", "archived"];

    pub(super) fn of(activity: &Activity) -> Self {
        let plain = |state, reason: &str| Self { state, reason: reason.to_owned(), again: None };
        match activity {
            Activity::Running(kind) => plain("running", &format!("a job runs: {}", kind.text())),
            Activity::Due => plain("due", "a job is due, and begins"),
            Activity::Deferred => plain("deferred", "what was due before the start waits until something changes"),
            Activity::Idle => plain("idle", "nothing is due"),
            Activity::Archived => plain("archived", "nothing is due, and the timeline is archived"),
            Activity::Off => plain("off", "compaction is turned off: compaction_threshold is 0"),
            Activity::WaitsForTurn => plain("waits", "a job of another timeline runs"),
            Activity::NoRoom(None) => plain("no room", "a job waits for room on the disk"),
            Activity::NoRoom(Some((why, again))) => Self { state: "no room", reason: why.clone(), again: Some(*again) },
            Activity::Failed(why, again) => Self { state: "failed", reason: why.clone(), again: Some(*again) },
            Activity::ReadOnly(why) => plain("read-only", why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_named_and_says_why() {
        let again = Duration::from_secs(20);
        let all = [
            Activity::Running(CompactionJob::Merge),
            Activity::Due,
            Activity::Deferred,
            Activity::Idle,
            Activity::Off,
            Activity::WaitsForTurn,
            Activity::NoRoom(None),
            Activity::NoRoom(Some(("7 bytes are left".to_owned(), again))),
            Activity::Failed("a layer is damaged".to_owned(), again),
            Activity::ReadOnly("another server has the tenant".to_owned()),
            Activity::Archived,
        ];
        let words: Vec<Words> = all.iter().map(Words::of).collect();
        let mut states: Vec<&str> = words.iter().map(|words| words.state).collect();
        states.dedup();
        assert_eq!(states, Words::STATES);
        assert!(words.iter().all(|words| !words.reason.is_empty()));
        assert_eq!(words[0].reason, "a job runs: merge");
        assert_eq!((words[7].again, words[8].again, words[9].again), (Some(again), Some(again), None));
    }
}
