//! The two things that are compared: branches at moments.

use anyhow::bail;
use clap::Args;
use serde_json::Value;
use utils::lsn::Lsn;

use crate::remote::connection::Remote;
use crate::remote::init_state::name_of;
use crate::remote::moment::lsn_at;
use crate::table::text;

/// What is compared, and with what.
#[derive(Debug, Args)]
pub(super) struct WantedSides {
    /// Its name or id, or NAME@MOMENT: dev@-10min, dev@2026-01-31T12:30:00Z, dev@0/16B3748.
    branch: String,
    /// The branch to compare with, or a moment of one in the same form; defaults to the ancestor, as of the branch
    /// point.
    pub(super) other: Option<String>,
    /// Compare as of an LSN, a time, or '10 minutes ago'; defaults to the branch's end.
    #[arg(long, value_name = "MOMENT")]
    at: Option<String>,
    /// Compare with the other branch, or with this one if no other is given, as of this LSN or time.
    #[arg(long, value_name = "MOMENT")]
    other_at: Option<String>,
}

/// A branch at a moment.
pub(super) struct Side {
    pub(super) branch: Value,
    pub(super) lsn: Lsn,
}

impl std::fmt::Display for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}@{}", name_of(&self.branch), self.lsn)
    }
}

/// What is compared, and with what.
pub(super) fn sides(remote: &Remote<'_>, args: &WantedSides) -> anyhow::Result<(Side, Side)> {
    let here = side(remote, &args.branch, args.at.as_deref())?;
    let there = match &args.other {
        Some(other) => side(remote, other, args.other_at.as_deref())?,
        None => before(remote, &here.branch, args.other_at.as_deref())?,
    };
    Ok((here, there))
}

fn side(remote: &Remote<'_>, wanted: &str, at: Option<&str>) -> anyhow::Result<Side> {
    let (name, moment) = split(wanted);
    if moment.is_some() && at.is_some() {
        bail!("{wanted} names a moment already: leave out --at or --other-at");
    }
    let branch = remote.branch_or_root(Some(name))?;
    let lsn = lsn_at(remote, &branch, moment.as_deref().or(at))?;
    Ok(Side { branch, lsn })
}

/// `NAME@MOMENT`, where `-10min` is 10 minutes ago.
fn split(text: &str) -> (&str, Option<String>) {
    match text.split_once('@') {
        None => (text, None),
        Some((name, moment)) => {
            let moment = moment.strip_prefix('-').map_or_else(|| moment.to_owned(), |ago| format!("{ago} ago"));
            (name, Some(moment))
        }
    }
}

/// What to compare with by default: the ancestor at the branch point, or with `other_at` the branch itself at that
/// time.
fn before(remote: &Remote<'_>, branch: &Value, other_at: Option<&str>) -> anyhow::Result<Side> {
    if other_at.is_some() {
        return Ok(Side { branch: branch.clone(), lsn: lsn_at(remote, branch, other_at)? });
    }
    match (branch["ancestor_timeline_id"].as_str(), text(branch, "ancestor_lsn").parse()) {
        (Some(ancestor), Ok(lsn)) => Ok(Side { branch: remote.branch_or_root(Some(ancestor))?, lsn }),
        _ => bail!("it continues no other branch: say with what to compare it, or with --other-at when"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_follows_the_name() {
        assert_eq!(split("dev"), ("dev", None));
        assert_eq!(split("dev@-10min"), ("dev", Some("10min ago".to_owned())));
        assert_eq!(split("dev@0/16B3748"), ("dev", Some("0/16B3748".to_owned())));
    }
}
