//! The choice of the timeline that a command is about.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use anyhow::bail;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

/// Maximum number of timelines listed in a message.
const LISTED: usize = 8;

/// A reference to a timeline, as given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TimelineRef {
    /// By its id.
    Id(TimelineId),
    /// By its branch's name, which never looks like an id.
    Name(String),
}

impl FromStr for TimelineRef {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(text.parse().map_or_else(|_| TimelineRef::Name(text.to_owned()), TimelineRef::Id))
    }
}

impl fmt::Display for TimelineRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimelineRef::Id(id) => id.fmt(f),
            TimelineRef::Name(name) => name.fmt(f),
        }
    }
}

impl TimelineRef {
    /// The id for a timeline that is yet to be created.
    pub(crate) fn of_new(&self) -> anyhow::Result<TimelineId> {
        match self {
            TimelineRef::Id(id) => Ok(*id),
            TimelineRef::Name(name) => {
                bail!("--timeline {name}: a new timeline's id is 32 hexadecimal digits; without one it is drawn")
            }
        }
    }
}

/// An existing timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) tenant: TenantShardId,
    pub(crate) id: TimelineId,
    pub(crate) name: Option<String>,
}

impl Found {
    fn is(&self, wanted: &TimelineRef) -> bool {
        match wanted {
            TimelineRef::Id(id) => self.id == *id,
            TimelineRef::Name(name) => self.name.as_ref() == Some(name),
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => name.fmt(f),
            None => self.id.fmt(f),
        }
    }
}

/// Chooses the one of `all` that the arguments name; the error for none or several explains how to name it. `place`
/// is where they were found.
pub(crate) fn choose(
    mut all: Vec<Found>,
    tenant: Option<TenantShardId>,
    timeline: Option<&TimelineRef>,
    place: &str,
) -> anyhow::Result<Found> {
    if all.is_empty() {
        bail!("{place} has no timeline: follow a server, or import a data directory first");
    }
    if let Some(tenant) = tenant {
        all.retain(|found| found.tenant == tenant);
        if all.is_empty() {
            bail!("{place} has no timeline of tenant {tenant}");
        }
    }
    let matching: Vec<&Found> = all.iter().filter(|found| timeline.is_none_or(|wanted| found.is(wanted))).collect();
    match (matching.as_slice(), timeline) {
        ([only], _) => Ok((*only).clone()),
        ([], Some(wanted)) => bail!("{place} has no timeline {wanted}; there are: {}", listed(&all)),
        (several, Some(wanted)) => {
            bail!("{place} has {} timelines {wanted}: say with --tenant which is meant", several.len())
        }
        (several, None) => {
            let count = several.len();
            bail!("{place} has {count} timelines: say with --timeline which is meant, by id or name: {}", listed(&all))
        }
    }
}

fn listed(all: &[Found]) -> String {
    let mut text = all.iter().take(LISTED).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if all.len() > LISTED {
        text.push_str(", ...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    const B: &str = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
    const C: &str = "cccccccccccccccccccccccccccccccc";

    fn found(tenant: &str, id: &str, name: Option<&str>) -> Found {
        Found { tenant: tenant.parse().unwrap(), id: id.parse().unwrap(), name: name.map(str::to_owned) }
    }

    fn chosen(all: &[Found], tenant: Option<&str>, timeline: Option<&str>) -> Result<Found, String> {
        let timeline: Option<TimelineRef> = timeline.map(|text| text.parse().unwrap());
        let tenant = tenant.map(|text| text.parse().unwrap());
        choose(all.to_vec(), tenant, timeline.as_ref(), "it").map_err(|error| error.to_string())
    }

    #[test]
    fn names_and_ids_are_told_apart() {
        assert_eq!(A.parse(), Ok(TimelineRef::Id(A.parse().unwrap())));
        assert_eq!("dev".parse(), Ok(TimelineRef::Name("dev".to_owned())));
        assert_eq!(TimelineRef::Id(A.parse().unwrap()).of_new().unwrap().to_string(), A);
        assert!(TimelineRef::Name("dev".to_owned()).of_new().is_err());
    }

    #[test]
    fn the_only_one_needs_no_name() {
        let all = [found(A, A, None), found(B, B, None), found(B, C, Some("dev"))];
        assert_eq!(chosen(&all[..1], None, None).as_ref(), Ok(&all[0]));
        assert_eq!(chosen(&all, Some(A), None).as_ref(), Ok(&all[0]), "the tenant's only one");
        let said = chosen(&all, Some(B), None).unwrap_err();
        assert!(said.contains("2 timelines") && said.contains("--timeline") && said.contains("dev"), "{said}");
        assert!(chosen(&[], None, None).unwrap_err().contains("no timeline"));
        assert!(chosen(&all, Some(C), None).unwrap_err().contains(C));
    }

    #[test]
    fn a_name_will_do_if_it_is_one_timelines() {
        let all = [found(A, A, None), found(A, B, Some("dev")), found(B, C, Some("dev"))];
        assert_eq!(chosen(&all[..2], None, Some("dev")).as_ref(), Ok(&all[1]));
        assert_eq!(chosen(&all, None, Some(B)).as_ref(), Ok(&all[1]), "an id needs no tenant");
        assert_eq!(chosen(&all, Some(B), Some("dev")).as_ref(), Ok(&all[2]));
        assert!(chosen(&all, None, Some("dev")).unwrap_err().contains("--tenant"));
        let said = chosen(&all[..2], None, Some("test")).unwrap_err();
        assert!(said.contains("no timeline test") && said.contains("dev") && said.contains(A), "{said}");
        let many: Vec<Found> = (0..20).map(|n| found(A, &format!("{n:032}"), None)).collect();
        assert!(chosen(&many, None, None).unwrap_err().len() < 600);
    }
}
