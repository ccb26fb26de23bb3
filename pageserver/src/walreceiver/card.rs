//! What is noted of a branch besides its name: until when it lives, whether it is protected, and whose it is. It is
//! stored beside the name, so it survives restarts, and goes with the tenant to whatever server has it.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::init_sql::{Init, Script};

/// See the module's documentation. Times are in seconds since 1970.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct BranchCard {
    /// When it was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) created_at: Option<u64>,
    /// From then on nobody may use it, and the server deletes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) expires_at: Option<u64>,
    /// Nothing deletes it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) protected: bool,
    /// By name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    /// Whose it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// What it is for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<String>,
    /// The branch that takes its place, until that is there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) successor: Option<Successor>,
    /// What runs on it before anybody uses it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) init: Option<Init>,
    /// What runs on each branch that is made of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) branches_init: Option<Script>,
    /// How much its tenant may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quota: Option<Quota>,
}

/// How much a tenant may have. It is stored with each of its timelines, and the newest counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Quota {
    /// How often it was changed.
    pub(crate) edition: u64,
    /// Branches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) branches: Option<u64>,
    /// Computes that write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) computes: Option<u64>,
    /// Bytes of layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
}

/// The branch that takes the place of one that is restored to an earlier moment, or begins anew.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Successor {
    /// Its id.
    pub(crate) timeline_id: TimelineId,
    /// Its name, which was that of the former one.
    pub(crate) name: Option<String>,
    /// The moment that it begins at.
    pub(crate) lsn: Lsn,
    /// The branch that it is made of, if the former one goes; otherwise it is made of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) anew_of: Option<TimelineId>,
}

/// Seconds since 1970.
pub(crate) fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// The time by which branches expire. A wall clock that somebody sets ahead ends no branch early, as long as the
/// process runs.
pub(crate) fn now() -> SystemTime {
    env::clock::system_now().min(env::clock::steady_now())
}

/// When a branch expires that lives for `ttl` from now on: not earlier, whichever clock is right.
pub(crate) fn end_of(ttl: Duration) -> Option<u64> {
    let end = env::clock::system_now().max(env::clock::steady_now()).checked_add(ttl)?;
    seconds(end).checked_add(1)
}

impl BranchCard {
    /// Whether nothing is noted.
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Whether it has expired at `now`.
    pub(crate) fn has_expired(&self, now: SystemTime) -> bool {
        self.expires_at.is_some_and(|end| seconds(now) >= end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_clock_that_is_set_ends_a_branch_early() {
        env::clock::freeze_thread();
        let end = end_of(Duration::from_secs(100)).unwrap();
        let card = BranchCard { expires_at: Some(end), ..BranchCard::default() };
        env::clock::set_thread(Duration::from_secs(3600), true);
        assert!(!card.has_expired(now()), "the wall clock was set ahead");
        env::clock::advance_thread(Duration::from_secs(102));
        assert!(card.has_expired(now()));
        env::clock::thaw_thread();
        assert_eq!(end_of(Duration::MAX), None);
    }

    #[test]
    fn a_branch_has_expired_from_its_last_second_on() {
        let card = BranchCard { expires_at: Some(1000), ..BranchCard::default() };
        let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
        assert!(!card.has_expired(at(999_999)) && card.has_expired(at(1_000_000)));
        assert!(!BranchCard::default().has_expired(at(u64::MAX / 2)));
    }
}
