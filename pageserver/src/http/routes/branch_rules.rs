//! What names of branches, labels and times to live must be, and how many branches there may be.

use pageserver_api::shard::TenantShardId;
use utils::excerpt::Excerpt;
use utils::id::TimelineId;

use crate::http::app::App;
use crate::http::error::ApiError;
use crate::http::guard::Subject;
use crate::http::models::TimelineCreate;
use crate::http::{moment, quotas};
use crate::walreceiver::card::{self, BranchCard};
use crate::walreceiver::stored::name_of;
use engine::tenant::manager::ManageError;

/// Maximum length of a branch name.
pub(super) const NAME_MAX: usize = 63;
/// Maximum number of labels of a branch, and length of their names.
const LABELS_MAX: usize = 32;
const LABEL_NAME_MAX: usize = 63;
/// Maximum length of other texts, in characters.
const TEXT_MAX: usize = 255;

/// What is noted of a new branch.
pub(super) fn card_of(wanted: &TimelineCreate, subject: Subject) -> Result<BranchCard, ApiError> {
    let expires_at = match (&wanted.ttl, &wanted.expires_at) {
        (None, None) => None,
        (Some(_), Some(_)) => return Err(ApiError::bad_request("give ttl or expires_at, not both")),
        (Some(ttl), None) => Some(end_of(ttl)?),
        (None, Some(time)) => {
            let end = card::seconds(moment::parse(time).map_err(ApiError::bad_request)?);
            if end <= card::seconds(card::now()) {
                return Err(ApiError::bad_request(format!("expires_at: {time} has passed")));
            }
            Some(end)
        }
    };
    let card = BranchCard {
        created_at: Some(card::seconds(env::clock::system_now())),
        expires_at,
        protected: wanted.protected,
        labels: wanted.labels.clone(),
        owner: subject.0.or_else(|| wanted.owner.clone()),
        reason: wanted.reason.clone(),
        successor: None,
        ..BranchCard::default()
    };
    check_texts(&card)?;
    Ok(card)
}

/// When a branch expires that lives for so long.
pub(super) fn end_of(ttl: &str) -> Result<u64, ApiError> {
    let invalid = |why: &str| ApiError::bad_request(format!("ttl {:?}: {why}", Excerpt(ttl)));
    let length = humantime::parse_duration(ttl).map_err(|_| invalid("expected a time such as 12h or 3d"))?;
    if length.as_secs() == 0 || length.subsec_nanos() > 0 {
        return Err(invalid("expected whole seconds, at least one"));
    }
    // What cannot be written as a time is no moment.
    card::end_of(length).filter(|end| *end <= moment::LAST).ok_or_else(|| invalid("it never ends"))
}

/// Refuses labels and texts that could not be shown.
pub(super) fn check_texts(card: &BranchCard) -> Result<(), ApiError> {
    let refused = |what: &str, text: &str, why: String| {
        Err(ApiError::bad_request(format!("{:?} is no {what}: {why}", Excerpt(text))))
    };
    if card.labels.len() > LABELS_MAX {
        return Err(ApiError::bad_request(format!("a branch has at most {LABELS_MAX} labels")));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-/".contains(&byte);
    for name in card.labels.keys() {
        if name.is_empty() || name.len() > LABEL_NAME_MAX || !name.bytes().all(plain) {
            let why = format!("letters, digits and _.-/, {LABEL_NAME_MAX} at most");
            return refused("name of a label", name, why);
        }
    }
    let values = card.labels.values().map(|value| ("value of a label", value));
    let texts = [("owner", &card.owner), ("reason", &card.reason)];
    let texts = texts.into_iter().filter_map(|(what, text)| Some((what, text.as_ref()?)));
    for (what, text) in values.chain(texts) {
        if text.chars().count() > TEXT_MAX || !text.chars().all(is_printable) {
            return refused(what, text, format!("printable characters, {TEXT_MAX} at most"));
        }
    }
    Ok(())
}

/// Whether a terminal or a log can show it.
pub(super) fn is_printable(c: char) -> bool {
    // Whatever would be shown as a number is not printable.
    !c.is_control() && !c.escape_debug().collect::<String>().starts_with("\\u")
}

/// Refuses a name that is none, or that of another branch than `id`.
pub(super) fn check_name(app: &App, tenant: TenantShardId, id: TimelineId, name: &str) -> Result<(), ApiError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let first = name.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
    if !first || name.len() > NAME_MAX || !name.bytes().all(plain) || name.parse::<TimelineId>().is_ok() {
        return Err(ApiError::bad_request(format!(
            "{name:?} is no name for a branch: a letter or digit, then letters, digits and _.-, {NAME_MAX} at most, \
             and not an id"
        )));
    }
    for timeline in app.manager.timelines(tenant)? {
        let other = timeline.timeline_id();
        if other == id {
            continue;
        }
        let is_taken = |taken: Option<String>| taken.as_deref() == Some(name);
        let to_come =
            BranchCard::of(&timeline).ok().and_then(|card| card.successor).and_then(|successor| successor.name);
        if is_taken(name_of(&timeline).unwrap_or_default()) || is_taken(to_come) {
            let reason = format!("the branch {name} exists already: it is timeline {other}");
            return Err(ManageError::Conflict(reason).into());
        }
    }
    Ok(())
}

/// Refuses one more branch where a tenant has as many as it may have.
pub(super) fn check_room(app: &App, tenant: TenantShardId, id: TimelineId) -> Result<(), ApiError> {
    let most = app.max_branches;
    if app.manager.get(tenant, id).is_ok() {
        return Ok(());
    }
    quotas::check_branches(app, tenant)?;
    if most == 0 {
        return Ok(());
    }
    let branches = app.manager.timelines(tenant)?;
    let count = branches.iter().filter(|timeline| timeline.origin().ancestor.is_some()).count();
    if count < most {
        return Ok(());
    }
    let reason = format!("tenant {tenant} has {count} branches, and may have {most} (max_branches): delete one first");
    Err(ApiError::precondition(reason))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn a_branch_lives_for_whole_seconds() {
        for good in ["1s", "3d", "1h 30m", "10years"] {
            assert!(end_of(good).is_ok(), "{good}");
        }
        for bad in ["", "0s", "-1s", "500ms", "1500ms", "3 parsecs", "9999999 years"] {
            assert!(end_of(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn labels_and_texts_are_plain() {
        let with = |name: &str, value: &str| BranchCard {
            labels: BTreeMap::from([(name.to_owned(), value.to_owned())]),
            reason: Some(value.to_owned()),
            ..BranchCard::default()
        };
        assert!(check_texts(&with("team/a_b.c-1", "\u{e9}t\u{e9} 7")).is_ok());
        for (name, value) in [("", "x"), ("a b", "x"), (&*"x".repeat(64), "x"), ("a", "x\ny"), ("a", &*"x".repeat(256))]
        {
            assert!(check_texts(&with(name, value)).is_err(), "{name:?} {value:?}");
        }
        let labels = (0..33).map(|n| (n.to_string(), String::new())).collect();
        assert!(check_texts(&BranchCard { labels, ..BranchCard::default() }).is_err());
    }
}
