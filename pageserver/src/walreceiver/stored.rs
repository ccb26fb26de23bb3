//! Externally supplied metadata of a timeline: its name and its WAL source. It is part of the manifest, which the
//! bucket gets too.

use camino::Utf8Path;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::shard::TenantShardId;

use super::card::BranchCard;
use super::source::WalSource;
use super::writer::Writer;
use engine::tenant::timeline::{Manifest, Timeline, Told};
use errors::StorageError;

/// The metadata, stored as JSON. It may contain a password, so it is never shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    connstr: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    writer: Option<Writer>,
    #[serde(default, rename = "branch", skip_serializing_if = "BranchCard::is_empty")]
    pub(super) card: BranchCard,
}

impl Stored {
    /// The metadata of a timeline; empty if none was supplied.
    pub(super) fn of(timeline: &Timeline) -> Result<Self, StorageError> {
        let Some(told) = timeline.told() else { return Ok(Self::default()) };
        Self::parse(&told).map_err(|reason| {
            let path = Manifest::path(timeline.dir());
            let reason = format!("it is not known where its WAL comes from: {reason}. Follow the server anew");
            StorageError::Corrupt { path, offset: 0, reason }
        })
    }

    pub(super) fn parse(told: &Told) -> Result<Self, String> {
        match serde_json::from_str::<Self>(&told.0) {
            Ok(stored) if stored.connstr.is_some() == stored.slot.is_some() => Ok(stored),
            Ok(_) => Err("a source has a connection string and a slot".to_owned()),
            // The parser's own message may contain parts of a password.
            Err(error) => Err(format!("line {}, column {}: this is no WAL source", error.line(), error.column())),
        }
    }

    pub(super) fn told(&self) -> Result<Told, StorageError> {
        serde_json::to_string(self).map(Told).map_err(|error| StorageError::Internal(error.to_string()))
    }

    pub(super) fn source(&self) -> Option<WalSource> {
        let (connstr, slot) = (self.connstr.clone()?, self.slot.clone()?);
        Some(WalSource { connstr, slot, writer: self.writer.clone() })
    }

    pub(super) fn with_source(self, source: Option<WalSource>) -> Self {
        let none = Self { name: self.name, card: self.card, ..Self::default() };
        match source {
            None => none,
            Some(WalSource { connstr, slot, writer }) => {
                Self { connstr: Some(connstr), slot: Some(slot), writer, ..none }
            }
        }
    }
}

/// The metadata of a new branch.
pub(crate) fn of_new_branch(name: Option<String>, card: BranchCard) -> Result<Told, StorageError> {
    Stored { name, card, ..Stored::default() }.told()
}

impl BranchCard {
    /// What is noted of a timeline; empty if nothing is.
    pub(crate) fn of(timeline: &Timeline) -> Result<Self, StorageError> {
        Ok(Stored::of(timeline)?.card)
    }
}

/// The name that was given to a timeline.
pub(crate) fn name_of(timeline: &Timeline) -> Result<Option<String>, StorageError> {
    Ok(Stored::of(timeline)?.name)
}

/// The name that was given to the timeline of `tenant` in `dir`, according to its manifest on disk.
///
/// # Errors
/// If the manifest cannot be read, or its metadata is invalid.
pub async fn branch_name(
    dir: &Utf8Path,
    tenant: TenantShardId,
    timeline: TimelineId,
) -> Result<Option<String>, StorageError> {
    let Some(told) = Manifest::load(dir, tenant, timeline).await?.wal_source else { return Ok(None) };
    let damaged = |reason| StorageError::Corrupt { path: Manifest::path(dir), offset: 0, reason };
    Ok(Stored::parse(&told).map_err(damaged)?.name)
}

impl WalSource {
    /// The source of a timeline, if it has one.
    pub(crate) fn of(timeline: &Timeline) -> Result<Option<Self>, StorageError> {
        Ok(Stored::of(timeline)?.source())
    }

    /// The metadata of a new timeline with this source.
    pub(crate) fn told(&self) -> Result<Told, StorageError> {
        Stored::default().with_source(Some(self.clone())).told()
    }

    /// Makes this the source of a timeline, durably.
    pub(crate) async fn store(&self, timeline: &Timeline) -> Result<(), StorageError> {
        timeline.tell(Stored::of(timeline)?.with_source(Some(self.clone())).told()?).await
    }

    /// Removes the source of a timeline.
    pub(crate) async fn forget(timeline: &Timeline) -> Result<(), StorageError> {
        timeline.tell(Stored::of(timeline)?.with_source(None).told()?).await
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::walreceiver::card::Successor;

    #[test]
    fn what_makes_no_sense_is_told_without_its_words() {
        for text in ["{\"connstr\": \"s3cret", "{\"connstr\": \"s3cret\"}", "{\"s3cret\": ", ""] {
            let reason = Stored::parse(&Told(text.to_owned())).err().unwrap();
            assert!(!reason.contains("s3cret"), "{reason}");
        }
        assert!(!format!("{:?}", Told("s3cret".to_owned())).contains("s3cret"));
    }

    #[test]
    fn a_name_stays_when_sources_come_and_go() {
        let card = BranchCard { protected: true, ..BranchCard::default() };
        let told = of_new_branch(Some("dev".to_owned()), card).unwrap();
        let named = Stored::parse(&told).ok().unwrap();
        assert!(named.source().is_none());
        let writer = Writer { id: "1".to_owned(), name: "c".to_owned(), start_lsn: utils::lsn::Lsn(8) };
        let source = WalSource { writer: Some(writer), ..WalSource::new("host=a password=s3cret", "s").unwrap() };
        let with = named.with_source(Some(source.clone()));
        let again = Stored::parse(&with.told().unwrap()).ok().unwrap();
        assert_eq!(again.source(), Some(source));
        assert_eq!(again.with_source(None).told().unwrap(), told);
    }

    #[test]
    fn a_card_is_stored_beside_the_name_and_none_leaves_no_trace() {
        assert_eq!(
            of_new_branch(Some("dev".to_owned()), BranchCard::default()).unwrap(),
            Told("{\"name\":\"dev\"}".to_owned())
        );
        let labels = BTreeMap::from([("pr".to_owned(), "7".to_owned())]);
        let (timeline_id, name) = (TimelineId::from([7; 16]), Some("dev".to_owned()));
        let successor = Successor { timeline_id, name, lsn: utils::lsn::Lsn(8), anew_of: None };
        let card = BranchCard {
            expires_at: Some(1000),
            protected: true,
            labels,
            successor: Some(successor),
            ..BranchCard::default()
        };
        let told = of_new_branch(Some("dev".to_owned()), card.clone()).unwrap();
        assert_eq!(Stored::parse(&told).ok().unwrap().card, card);
        let later = told.0.replace("\"protected\"", "\"unknown to this version\":1,\"protected\"");
        assert_eq!(Stored::parse(&Told(later)).ok().unwrap().card, card);
    }
}
