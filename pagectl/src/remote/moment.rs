//! Points in a history as people give them: an LSN, a time, or how long ago.

use anyhow::{Context, bail};
use serde_json::Value;
use utils::lsn::Lsn;

use super::client::encoded;
use super::connection::Remote;
use crate::table::text;

/// A point in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// At an LSN.
    Lsn(Lsn),
    /// At a time, in a format that the server accepts.
    Time(String),
}

/// What `--at` accepts.
pub(super) const HELP: &str = "an LSN (0/16B3748), a time (2026-01-31T12:30:00Z), or '10 minutes ago'";

/// Parses the value of `--at`.
pub(super) fn parse(text: &str) -> anyhow::Result<Moment> {
    let text = text.trim();
    if let Ok(lsn) = text.parse::<Lsn>() {
        return Ok(Moment::Lsn(lsn));
    }
    if let Some(ago) = text.strip_suffix("ago") {
        humantime::parse_duration(ago.trim()).with_context(|| format!("--at {text:?}: expected {HELP}"))?;
        // The server's clock decides, since this machine's may be wrong.
        return Ok(Moment::Time(text.to_owned()));
    }
    match text.bytes().next() {
        // The server validates the format of the time.
        Some(digit) if digit.is_ascii_digit() && text.contains(':') => Ok(Moment::Time(text.to_owned())),
        _ => bail!("--at {text:?}: expected {HELP}"),
    }
}

/// The LSN of a point in a branch's history.
pub(super) fn lsn_at(remote: &Remote<'_>, branch: &Value, at: Option<&str>) -> anyhow::Result<Lsn> {
    let lsn = |text: String| text.parse().map_err(|error| anyhow::anyhow!("{text:?}: {error}"));
    match at.map(parse).transpose()? {
        None => lsn(text(branch, "last_record_lsn")),
        Some(Moment::Lsn(lsn)) => Ok(lsn),
        Some(Moment::Time(time)) => {
            let (tenant, timeline) = (text(branch, "tenant_id"), text(branch, "timeline_id"));
            let path = format!("/v1/tenant/{tenant}/timeline/{timeline}/get_lsn_by_timestamp");
            let answer = remote.client.get(&format!("{path}?timestamp={}", encoded(&time)))?;
            match answer["kind"].as_str() {
                Some("past") => bail!("{time} is before the history that is kept"),
                Some("nodata") => bail!("{time} cannot be found: no commit has left its time as yet"),
                _ => lsn(text(&answer, "lsn")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        assert_eq!(parse("0/16B3748").unwrap(), Moment::Lsn(Lsn(0x016B_3748)));
        assert_eq!(parse("2026-01-31 12:30:00+02:00").unwrap(), Moment::Time("2026-01-31 12:30:00+02:00".to_owned()));
        for ago in ["10 minutes ago", "1h 30m ago", "5s ago", "2 days ago"] {
            assert_eq!(parse(ago).unwrap(), Moment::Time(ago.to_owned()), "the server's clock counts");
        }
        for bad in ["", "yesterday", "minutes ago", "5", "ago", "-5 minutes ago", "12 parsecs ago"] {
            let error = format!("{:#}", parse(bad).unwrap_err());
            assert!(error.contains("10 minutes ago"), "{bad}: {error}");
        }
    }
}
