//! Times as text: input is RFC 3339 with any offset, or relative to this server's clock; output is RFC 3339 in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use utils::excerpt::Excerpt;

use pgdata::timestamps::PgTimestamp;

/// Seconds from 1970 to 2000, the Postgres epoch.
const PG_EPOCH: u64 = 946_684_800;
/// RFC 3339 ends with the year 9999.
pub(super) const LAST: u64 = 253_402_300_799;

/// Parses `2026-01-31T12:30:00.5Z`, optionally with a blank for the `T` or an offset such as `+02:00` for the `Z`; or
/// `10 minutes ago`.
pub(super) fn parse(text: &str) -> Result<SystemTime, String> {
    let invalid = || {
        let shown = Excerpt(text);
        format!("invalid moment {shown:?}: expected RFC 3339 such as 2026-01-31T12:30:00Z, or such as 10 minutes ago")
    };
    if let Some(ago) = text.trim_end().strip_suffix("ago") {
        let ago = humantime::parse_duration(ago.trim()).map_err(|_| invalid())?;
        let moment = env::clock::system_now().checked_sub(ago).filter(|moment| *moment >= UNIX_EPOCH);
        return moment.ok_or_else(|| format!("invalid moment {:?}: that is before 1970", Excerpt(text)));
    }
    let (local, offset) = split_offset(text).ok_or_else(invalid)?;
    let local = humantime::parse_rfc3339_weak(local).map_err(|_| invalid())?;
    let shifted = if offset < 0 {
        local.checked_add(Duration::from_secs(offset.unsigned_abs()))
    } else {
        local.checked_sub(Duration::from_secs(offset.unsigned_abs()))
    };
    shifted.ok_or_else(invalid)
}

/// Splits off the offset, in seconds east of UTC.
fn split_offset(text: &str) -> Option<(&str, i64)> {
    let Some(at) = text.len().checked_sub(6).filter(|at| text.get(*at..).is_some_and(|end| end.contains(':'))) else {
        return Some((text, 0));
    };
    let (local, offset) = text.split_at_checked(at)?;
    let (sign, clock) = match offset.split_at_checked(1)? {
        ("+", clock) => (1, clock),
        ("-", clock) => (-1, clock),
        _ => return Some((text, 0)),
    };
    let (hours, minutes) = clock.split_once(':')?;
    let number = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<i64>().ok());
    let (hours, minutes) = (number(hours)??, number(minutes)??);
    (hours < 24 && minutes < 60).then_some((local, sign * (hours * 3600 + minutes * 60)))
}

/// The time in UTC.
pub(super) fn print(moment: SystemTime) -> String {
    humantime::format_rfc3339_micros(moment).to_string()
}

/// A number of seconds since 1970, in UTC.
pub(super) fn of_unix(seconds: u64) -> String {
    print(UNIX_EPOCH + Duration::from_secs(seconds.min(LAST)))
}

/// The time as stored by Postgres.
pub(super) fn to_pg(moment: SystemTime) -> PgTimestamp {
    let epoch = UNIX_EPOCH + Duration::from_secs(PG_EPOCH);
    let micros = |duration: Duration| i64::try_from(duration.as_micros()).unwrap_or(i64::MAX);
    match moment.duration_since(epoch) {
        Ok(after) => micros(after),
        Err(before) => -micros(before.duration()),
    }
}

/// The time from a Postgres timestamp; `None` if RFC 3339 cannot represent it.
pub(super) fn from_pg(time: PgTimestamp) -> Option<SystemTime> {
    let epoch = UNIX_EPOCH + Duration::from_secs(PG_EPOCH);
    let by = Duration::from_micros(time.unsigned_abs());
    let moment = if time < 0 { epoch.checked_sub(by) } else { epoch.checked_add(by) }?;
    moment.duration_since(UNIX_EPOCH).ok().filter(|since| since.as_secs() <= LAST).map(|_| moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_with_any_offset() {
        let utc = parse("2026-01-31T12:30:00.25Z").unwrap();
        assert_eq!(print(utc), "2026-01-31T12:30:00.250000Z");
        for same in ["2026-01-31 12:30:00.25", "2026-01-31T14:30:00.25+02:00", "2026-01-31T07:00:00.25-05:30"] {
            assert_eq!(parse(same), Ok(utc), "{same}");
        }
        for bad in [
            "",
            "now",
            "2026-01-31",
            "2026-01-31T12:30:00+25:00",
            "2026-01-31T12:30:00+aa:00",
            "+02:00",
            "\u{65e5}\u{672c}:\u{8a9e}1",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn how_long_ago_is_told_by_this_clock() {
        env::clock::freeze_thread();
        let now = env::clock::system_now();
        for (text, seconds) in [("4 seconds ago", 4), ("1h 30m ago", 5400), ("2days ago ", 172_800)] {
            assert_eq!(parse(text), Ok(now - Duration::from_secs(seconds)), "{text}");
        }
        for bad in ["ago", "minutes ago", "-5 minutes ago", "12 parsecs ago", "100 years ago", "99999999999 years ago"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn postgres_counts_from_2000() {
        let moment = parse("2000-01-01T00:00:01Z").unwrap();
        assert_eq!(to_pg(moment), 1_000_000);
        assert_eq!(from_pg(1_000_000), Some(moment));
        assert_eq!(from_pg(to_pg(UNIX_EPOCH)), Some(UNIX_EPOCH));
        assert_eq!((from_pg(i64::MAX), from_pg(i64::MIN)), (None, None));
    }
}
