//! Commands of the page service.

use std::str::FromStr;

use pageserver_api::pagestream::ProtocolVersion;
use utils::excerpt::Excerpt;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utils::shard::TenantShardId;

use metrics::ComputeCommand;

/// A command. Words are separated by white space; keywords are case-insensitive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Requests for pages follow.
    PageStream { version: ProtocolVersion, tenant: TenantId, timeline: TimelineId },
    /// A data directory without relations.
    BaseBackup { tenant: TenantId, timeline: TimelineId, lsn: Option<Lsn>, gzip: bool, replica: bool },
    /// A whole data directory.
    FullBackup { tenant: TenantId, timeline: TimelineId, lsn: Option<Lsn> },
    /// The boot image of a compute.
    BootImage { tenant: TenantId, timeline: TimelineId, lsn: Option<Lsn>, gzip: bool },
    /// Keep an LSN readable.
    Lease { tenant: TenantShardId, timeline: TimelineId, lsn: Lsn },
    /// `SET`: accepted and ignored, because drivers send it.
    Set,
}

impl Command {
    /// The command's name in metrics, if it is counted.
    pub(super) fn kind(&self) -> Option<ComputeCommand> {
        match self {
            Command::PageStream { version: ProtocolVersion::V2, .. } => Some(ComputeCommand::PageStreamV2),
            Command::PageStream { version: ProtocolVersion::V3, .. } => Some(ComputeCommand::PageStreamV3),
            Command::BaseBackup { .. } | Command::BootImage { .. } => Some(ComputeCommand::Basebackup),
            Command::FullBackup { .. } => Some(ComputeCommand::Fullbackup),
            Command::Lease { .. } => Some(ComputeCommand::LeaseLsn),
            Command::Set => None,
        }
    }
}

/// Result columns of a command, if it returns rows.
pub(super) fn columns(text: &str) -> Option<&'static [&'static str]> {
    let (first, rest) = first_word(text);
    let is_lease = first.eq_ignore_ascii_case("lease") && first_word(rest).0.eq_ignore_ascii_case("lsn");
    is_lease.then_some(&["valid_until"])
}

/// Parses a command; the error is the message for the client.
pub(super) fn parse(text: &str) -> Result<Command, String> {
    let text = text.trim().trim_end_matches(';');
    let (word, rest) = first_word(text);
    let words: Vec<&str> = rest.split_whitespace().collect();
    match word.to_ascii_lowercase().as_str() {
        "pagestream_v2" => page_stream(ProtocolVersion::V2, &words),
        "pagestream_v3" => page_stream(ProtocolVersion::V3, &words),
        "basebackup" => base_backup(&words),
        "bootimage" => boot_image(&words),
        "fullbackup" => full_backup(&words),
        "lease" => lease(&words),
        "set" => Ok(Command::Set),
        _ => Err(format!("unknown command {:?}", Excerpt(word))),
    }
}

fn first_word(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    text.split_once(char::is_whitespace).unwrap_or((text, ""))
}

fn argument<T: FromStr>(text: &str, what: &str) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.parse().map_err(|error| format!("{what}: {error}"))
}

fn page_stream(version: ProtocolVersion, words: &[&str]) -> Result<Command, String> {
    let [tenant, timeline] = words else {
        return Err(format!("usage: {} TENANT TIMELINE", version.command()));
    };
    Ok(Command::PageStream { version, tenant: argument(tenant, "tenant")?, timeline: argument(timeline, "timeline")? })
}

fn base_backup(words: &[&str]) -> Result<Command, String> {
    let usage = || "usage: basebackup TENANT TIMELINE [LSN|latest] [--gzip] [--replica]".to_owned();
    let [tenant, timeline, rest @ ..] = words else { return Err(usage()) };
    let (lsn, flags) = match rest {
        [first, flags @ ..] if !first.starts_with("--") => (Some(first), flags),
        flags => (None, flags),
    };
    let (mut gzip, mut replica) = (false, false);
    for flag in flags {
        let set = match *flag {
            "--gzip" => &mut gzip,
            "--replica" => &mut replica,
            _ => return Err(usage()),
        };
        if std::mem::replace(set, true) {
            return Err(format!("{flag} is given twice"));
        }
    }
    let lsn = match lsn {
        None => None,
        Some(text) if text.eq_ignore_ascii_case("latest") => None,
        Some(text) => Some(argument(text, "LSN")?),
    };
    let (tenant, timeline) = (argument(tenant, "tenant")?, argument(timeline, "timeline")?);
    Ok(Command::BaseBackup { tenant, timeline, lsn, gzip, replica })
}

/// Takes the arguments of a base backup, except the one for standbys.
fn boot_image(words: &[&str]) -> Result<Command, String> {
    match base_backup(words) {
        Ok(Command::BaseBackup { tenant, timeline, lsn, gzip, replica: false }) => {
            Ok(Command::BootImage { tenant, timeline, lsn, gzip })
        }
        Err(error) if !error.starts_with("usage") => Err(error),
        _ => Err("usage: bootimage TENANT TIMELINE [LSN|latest] [--gzip]".to_owned()),
    }
}

/// Clients may also give the previous LSN. It is not needed: nothing before the backup is ever read.
fn full_backup(words: &[&str]) -> Result<Command, String> {
    let (ids, lsns) = words.split_at_checked(2).unwrap_or((words, &[]));
    let ([tenant, timeline], [] | [_] | [_, _]) = (ids, lsns) else {
        return Err("usage: fullbackup TENANT TIMELINE [LSN [PREVIOUS_LSN]]".to_owned());
    };
    let mut parsed = lsns.iter().map(|text| argument::<Lsn>(text, "LSN"));
    let lsn = parsed.next().transpose()?;
    parsed.try_for_each(|previous| previous.map(drop))?;
    Ok(Command::FullBackup { tenant: argument(tenant, "tenant")?, timeline: argument(timeline, "timeline")?, lsn })
}

fn lease(words: &[&str]) -> Result<Command, String> {
    match words {
        [lsn_word, tenant, timeline, lsn] if lsn_word.eq_ignore_ascii_case("lsn") => Ok(Command::Lease {
            tenant: argument(tenant, "tenant")?,
            timeline: argument(timeline, "timeline")?,
            lsn: argument(lsn, "LSN")?,
        }),
        _ => Err("usage: lease lsn TENANT TIMELINE LSN".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: &str = "00112233445566778899aabbccddeeff";
    const L: &str = "ffeeddccbbaa99887766554433221100";

    #[test]
    fn commands() {
        let (tenant, timeline) = (T.parse().unwrap(), L.parse().unwrap());
        let page_stream = |version| Ok(Command::PageStream { version, tenant, timeline });
        assert_eq!(parse(&format!("pagestream_v2 {T} {L}")), page_stream(ProtocolVersion::V2));
        assert_eq!(parse(&format!(" PageStream_V3\t{T}  {L};")), page_stream(ProtocolVersion::V3));
        let base = |lsn, gzip, replica| Ok(Command::BaseBackup { tenant, timeline, lsn, gzip, replica });
        assert_eq!(parse(&format!("basebackup {T} {L}")), base(None, false, false));
        assert_eq!(parse(&format!("basebackup {T} {L} latest --gzip")), base(None, true, false));
        let boot = |lsn, gzip| Ok(Command::BootImage { tenant, timeline, lsn, gzip });
        assert_eq!(parse(&format!("bootimage {T} {L} 0/18 --gzip")), boot(Some(Lsn(0x18)), true));
        assert_eq!(parse(&format!("BootImage {T} {L}")), boot(None, false));
        for bad in ["", "x y", &format!("{T} {L} --replica"), &format!("{T} {L} 0/1 0/2")] {
            assert!(parse(&format!("bootimage {bad}")).is_err(), "{bad}");
        }
        assert_eq!(parse(&format!("basebackup {T} {L} --replica --gzip")), base(None, true, true));
        assert_eq!(parse(&format!("basebackup {T} {L} 0/10 --gzip")), base(Some(Lsn(16)), true, false));
        let full = |lsn| Ok(Command::FullBackup { tenant, timeline, lsn });
        assert_eq!(parse(&format!("fullbackup {T} {L}")), full(None));
        assert_eq!(parse(&format!("fullbackup {T} {L} 0/10 0/8")), full(Some(Lsn(16))));
        let lease = Command::Lease { tenant: format!("{T}-0104").parse().unwrap(), timeline, lsn: Lsn(16) };
        assert_eq!(parse(&format!("lease LSN {T}-0104 {L} 0/10")), Ok(lease));
        assert_eq!(parse("SET datestyle TO 'ISO'"), Ok(Command::Set));
    }

    #[test]
    fn what_is_no_command() {
        let more = ["", " 0/1 --fast", " 0/1 --gzip --gzip", " 1 --gzip", " 0/1 0/2"];
        for text in more.map(|more| format!("basebackup {T}{more}")) {
            assert!(parse(&text).is_err(), "{text}");
        }
        for text in ["", "select 1", "lease", "lease x", "pagestream_v3 x y", "pagestream_v1"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&format!("pagestream_v3 {T}-0102 {L}")).is_err());
        assert!(parse(&format!("pagestream_v3 {T} {L} more")).is_err());
        assert!(parse(&format!("fullbackup {T} {L} 0/1 0/1 0/1")).is_err());
        assert!(parse(&format!("fullbackup {T} {L} 0/1 x")).is_err());
    }

    #[test]
    fn only_leases_give_rows() {
        assert_eq!(columns(" LEASE  lsn x"), Some(["valid_until"].as_slice()));
        assert_eq!(columns("leaselsn x"), None);
        assert_eq!(columns("basebackup"), None);
    }
}
