//! Moments as people give them: an LSN, a time, or how long ago.

use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail};
use utils::lsn::Lsn;

/// A place in a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Moment {
    /// At an LSN.
    Lsn(Lsn),
    /// At a time, as the server takes it.
    Time(String),
}

/// What `--at` may say.
pub(super) const HELP: &str = "an LSN (0/16B3748), a time (2026-01-31T12:30:00Z), or '10 minutes ago'";

/// Parses what `--at` says.
pub(super) fn parse(text: &str) -> anyhow::Result<Moment> {
    let text = text.trim();
    if let Ok(lsn) = text.parse::<Lsn>() {
        return Ok(Moment::Lsn(lsn));
    }
    if let Some(ago) = text.strip_suffix("ago") {
        return before_now(ago.trim()).with_context(|| format!("--at {text:?}: expected {HELP}"));
    }
    match text.bytes().next() {
        // The server knows what a time looks like.
        Some(digit) if digit.is_ascii_digit() && text.contains(':') => Ok(Moment::Time(text.to_owned())),
        _ => bail!("--at {text:?}: expected {HELP}"),
    }
}

fn before_now(ago: &str) -> anyhow::Result<Moment> {
    let ago: Duration = humantime::parse_duration(ago)?;
    let moment = env::clock::system_now().checked_sub(ago).filter(|moment| *moment >= UNIX_EPOCH);
    let moment = moment.context("that is before 1970")?;
    Ok(Moment::Time(humantime::format_rfc3339_micros(moment).to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments() {
        assert_eq!(parse("0/16B3748").unwrap(), Moment::Lsn(Lsn(0x016B_3748)));
        assert_eq!(parse("2026-01-31 12:30:00+02:00").unwrap(), Moment::Time("2026-01-31 12:30:00+02:00".to_owned()));
        for ago in ["10 minutes ago", "1h 30m ago", "5s ago", "2 days ago"] {
            let Moment::Time(time) = parse(ago).unwrap() else { panic!("{ago}") };
            let moment = humantime::parse_rfc3339(&time).unwrap();
            assert!(moment.elapsed().unwrap() >= Duration::from_secs(5), "{ago}: {time}");
        }
        for bad in ["", "yesterday", "minutes ago", "5", "ago", "-5 minutes ago", "12 parsecs ago", "100 years ago"] {
            let error = format!("{:#}", parse(bad).unwrap_err());
            assert!(error.contains("10 minutes ago"), "{bad}: {error}");
        }
    }
}
