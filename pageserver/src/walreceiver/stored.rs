//! What is told about a timeline from outside, in a small file of its directory, which the bucket gets too: its name,
//! and where its WAL comes from.

use camino::Utf8Path;
use serde::{Deserialize, Serialize};

use super::source::WalSource;
use super::writer::Writer;
use crate::errors::{ErrorKind, StorageError};
use crate::tenant::timeline::{Timeline, WAL_SOURCE_NAME};
use crate::virtual_file::fs;

/// The file. It may hold a password, so only the owner may read it, and it is never shown.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stored {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    connstr: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    slot: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    writer: Option<Writer>,
}

impl Stored {
    /// That of the timeline in `dir`; with nothing in it if there is none.
    pub(super) async fn load(dir: &Utf8Path) -> Result<Self, StorageError> {
        let path = dir.join(WAL_SOURCE_NAME);
        let bytes = match fs::read_file(&path).await {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::Gone => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let parsed: Result<Self, _> = serde_json::from_slice(&bytes);
        let reason = match parsed {
            Ok(stored) if stored.connstr.is_some() == stored.slot.is_some() => return Ok(stored),
            Ok(_) => "a source has a connection string and a slot".to_owned(),
            // The parser's own words may hold parts of a password.
            Err(error) => format!("line {}, column {}: this is no WAL source", error.line(), error.column()),
        };
        Err(StorageError::Corrupt { path, offset: 0, reason })
    }

    pub(super) async fn store(&self, dir: &Utf8Path) -> Result<(), StorageError> {
        fs::write_secret_durably(&dir.join(WAL_SOURCE_NAME), &self.encode()?).await
    }

    fn encode(&self) -> Result<Vec<u8>, StorageError> {
        serde_json::to_vec(self).map_err(|error| StorageError::Internal(error.to_string()))
    }

    pub(super) fn source(&self) -> Option<WalSource> {
        let (connstr, slot) = (self.connstr.clone()?, self.slot.clone()?);
        Some(WalSource { connstr, slot, writer: self.writer.clone() })
    }

    pub(super) fn with_source(self, source: Option<WalSource>) -> Self {
        let none = Self { name: self.name, ..Self::default() };
        match source {
            None => none,
            Some(WalSource { connstr, slot, writer }) => {
                Self { connstr: Some(connstr), slot: Some(slot), writer, ..none }
            }
        }
    }
}

/// What the file of a new branch says: its name.
pub(crate) fn of_new_branch(name: &str) -> Result<Vec<u8>, StorageError> {
    Stored { name: Some(name.to_owned()), ..Stored::default() }.encode()
}

/// The name that somebody gave a timeline.
pub(crate) async fn name_of(timeline: &Timeline) -> Result<Option<String>, StorageError> {
    Ok(Stored::load(timeline.dir()).await?.name)
}
