//! The server's identity, and its slots.

use bytes::Bytes;
use utils::lsn::Lsn;

use super::command::{identifier, parse, text};
use super::connection::ReplicationClient;
use crate::client::ClientError;
use crate::error::ProtocolError;
use crate::sqlstate::SqlState;

/// Identity and position of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemIdentity {
    /// The cluster's identifier, the same in all its copies.
    pub system_id: u64,
    /// The timeline that it writes (or replays).
    pub timeline: u32,
    /// End of the WAL that it has flushed; on a standby, replayed.
    pub flush_lsn: Lsn,
}

/// A physical replication slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotInfo {
    /// Start of the oldest WAL that the slot keeps; `None` if it does not keep any yet.
    pub restart_lsn: Option<Lsn>,
    /// The timeline of that WAL.
    pub restart_timeline: Option<u32>,
}

/// The history file of a timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimelineHistory {
    /// For example 00000002.history.
    pub filename: String,
    /// Lines of parent, switch LSN, reason.
    pub content: Bytes,
}

impl ReplicationClient {
    /// Identifies the cluster.
    pub async fn identify_system(&mut self) -> Result<SystemIdentity, ClientError> {
        let set = self.query_one("IDENTIFY_SYSTEM").await?;
        let row = set.rows.first().ok_or(ProtocolError::Malformed("answer to IDENTIFY_SYSTEM"))?;
        Ok(SystemIdentity {
            system_id: parse(row, 0, "systemid")?,
            timeline: parse(row, 1, "timeline")?,
            flush_lsn: parse(row, 2, "xlogpos")?,
        })
    }

    /// The value of setting `name`, as the server formats it ("16MB", "on").
    pub async fn show(&mut self, name: &str) -> Result<String, ClientError> {
        let set = self.query_one(&format!("SHOW {}", identifier(name))).await?;
        let row = set.rows.first().ok_or(ProtocolError::Malformed("answer to SHOW"))?;
        parse(row, 0, "answer to SHOW")
    }

    /// Creates a physical slot. With `reserve_wal` it keeps WAL from now on, otherwise from its first use.
    ///
    /// # Errors
    /// [`SqlState::DUPLICATE_OBJECT`] if a slot of that name exists.
    pub async fn create_physical_slot(&mut self, name: &str, reserve_wal: bool) -> Result<(), ClientError> {
        let options = if reserve_wal { " RESERVE_WAL" } else { "" };
        let command = format!("CREATE_REPLICATION_SLOT {} PHYSICAL{options}", identifier(name));
        self.query_one(&command).await.map(drop)
    }

    /// Removes a slot.
    ///
    /// # Errors
    /// [`SqlState::UNDEFINED_OBJECT`] if there is none, [`SqlState::OBJECT_IN_USE`] if somebody streams from it.
    pub async fn drop_slot(&mut self, name: &str) -> Result<(), ClientError> {
        self.query_one(&format!("DROP_REPLICATION_SLOT {}", identifier(name))).await.map(drop)
    }

    /// Removes a slot; if somebody streams from it, waits for that to end, which may take forever.
    ///
    /// # Errors
    /// [`SqlState::UNDEFINED_OBJECT`] if there is none.
    pub async fn drop_slot_when_idle(&mut self, name: &str) -> Result<(), ClientError> {
        self.query_one(&format!("DROP_REPLICATION_SLOT {} WAIT", identifier(name))).await.map(drop)
    }

    /// The slot `name`; `None` if there is no such slot.
    ///
    /// # Errors
    /// [`ClientError::Unsupported`] before version 15, which has no command for it: there, try to create the slot.
    pub async fn read_slot(&mut self, name: &str) -> Result<Option<SlotInfo>, ClientError> {
        if self.server_major() < 15 {
            return Err(ClientError::Unsupported("READ_REPLICATION_SLOT needs version 15".into()));
        }
        let set = self.query_one(&format!("READ_REPLICATION_SLOT {}", identifier(name))).await?;
        let row = set.rows.first().ok_or(ProtocolError::Malformed("answer to READ_REPLICATION_SLOT"))?;
        if text(row, 0).is_none() {
            return Ok(None);
        }
        let (restart_lsn, restart_timeline) = (text(row, 1), text(row, 2));
        Ok(Some(SlotInfo {
            restart_lsn: restart_lsn.and_then(|lsn| lsn.parse().ok()),
            restart_timeline: restart_timeline.and_then(|tli| tli.parse().ok()),
        }))
    }

    /// Creates the slot unless it already exists.
    pub async fn ensure_physical_slot(&mut self, name: &str, reserve_wal: bool) -> Result<(), ClientError> {
        match self.create_physical_slot(name, reserve_wal).await {
            Err(error) if error.sqlstate() == Some(SqlState::DUPLICATE_OBJECT) => Ok(()),
            result => result,
        }
    }

    /// The history file of `timeline`. Timeline 1 has none.
    pub async fn timeline_history(&mut self, timeline: u32) -> Result<TimelineHistory, ClientError> {
        let set = self.query_one(&format!("TIMELINE_HISTORY {timeline}")).await?;
        let malformed = ProtocolError::Malformed("answer to TIMELINE_HISTORY");
        let row = set.rows.into_iter().next().ok_or(malformed.clone())?;
        let filename = text(&row, 0).ok_or(malformed.clone())?;
        let content = row.into_iter().nth(1).flatten().ok_or(malformed)?;
        Ok(TimelineHistory { filename, content })
    }
}
