//! BASE_BACKUP: a stream of tar archives, one for each tablespace.
//!
//! Up to version 14 every archive is a separate COPY and lacks the two blocks of zeros at its end. Since 15 there is
//! one COPY whose messages have a type.

use std::collections::VecDeque;

use bytes::Bytes;
use utils::lsn::Lsn;

use super::command::{literal, parse, text};
use super::connection::ReplicationClient;
use crate::backend::{BackendMessage, Row};
use crate::client::ClientError;
use crate::client::unexpected;
use crate::error::ProtocolError;
use crate::fields::Fields;

/// Options of a base backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseBackupOptions {
    /// Written into `backup_label`.
    pub label: String,
    /// Start with an immediate checkpoint, instead of spreading its writes over minutes.
    pub fast_checkpoint: bool,
    /// Estimate the sizes of tablespaces first, and report progress (since 15).
    pub progress: bool,
    /// Include in `pg_wal` the WAL that makes the copy consistent.
    pub wal: bool,
    /// At the end, wait until the WAL is archived. Has no effect without archiving.
    pub wait_for_archive: bool,
    /// Maximum transfer rate in KiB/s.
    pub max_rate: Option<u32>,
}

impl Default for BaseBackupOptions {
    fn default() -> Self {
        Self {
            label: "base backup".to_owned(),
            fast_checkpoint: true,
            progress: true,
            wal: false,
            wait_for_archive: false,
            max_rate: None,
        }
    }
}

/// The LSN and timeline at which a backup begins or ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackupPosition {
    /// LSN. At the beginning the checkpoint's redo pointer; at the end, where the copy has become consistent.
    pub lsn: Lsn,
    /// Timeline of the LSN.
    pub timeline: u32,
}

/// A tablespace of the backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tablespace {
    /// OID; `None` for the data directory itself, which holds `pg_default` and `pg_global`.
    pub oid: Option<u32>,
    /// Its path on the server.
    pub location: Option<String>,
    /// Estimated size in KiB, if requested.
    pub size_kb: Option<u64>,
}

/// An event of the backup stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackupEvent {
    /// Subsequent data belong to another archive.
    NewArchive {
        /// Such as `base.tar` or `16384.tar`.
        name: String,
        /// The tablespace's OID; `None` for the data directory.
        spcoid: Option<u32>,
        /// The tablespace's path on the server.
        path: Option<String>,
    },
    /// The next bytes of the archive.
    Data(Bytes),
    /// Number of bytes of the current tablespace that the server has sent, by its own count.
    Progress(u64),
}

/// A base backup in progress.
pub struct BaseBackup {
    client: ReplicationClient,
    start: BackupPosition,
    tablespaces: Vec<Tablespace>,
    /// Versions up to 14: remaining archives.
    to_come: VecDeque<Tablespace>,
    state: State,
    end: Option<BackupPosition>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Waiting for the next COPY, or the last result set.
    Between,
    /// In a COPY.
    Copying,
    /// In a COPY, inside the manifest, which is skipped.
    Manifest,
    Finished,
}

impl ReplicationClient {
    /// Starts a base backup. Dropping the result ends the backup on the server.
    pub async fn base_backup(mut self, options: &BaseBackupOptions) -> Result<BaseBackup, ClientError> {
        let command = backup_command(self.server_major, options);
        self.client.send_query(&command).await?;
        let start = position(&self.one_set().await?, "start of the base backup")?;
        let tablespaces = self.one_set().await?.iter().map(tablespace).collect::<Result<Vec<_>, _>>()?;
        let to_come = tablespaces.clone().into();
        Ok(BaseBackup { client: self, start, tablespaces, to_come, state: State::Between, end: None })
    }

    /// Rows up to the end of the next result set, for a command with several.
    async fn one_set(&mut self) -> Result<Vec<Row>, ClientError> {
        let mut rows = vec![];
        loop {
            match self.client.receive().await? {
                BackendMessage::RowDescription(_) => {}
                BackendMessage::DataRow(row) => rows.push(row),
                BackendMessage::CommandComplete(_) => return Ok(rows),
                other => return Err(unexpected(&other, "starting a base backup")),
            }
        }
    }
}

fn backup_command(major: u32, options: &BaseBackupOptions) -> String {
    let label = literal(&options.label);
    if major >= 15 {
        let checkpoint = if options.fast_checkpoint { "fast" } else { "spread" };
        let rate = options.max_rate.map(|rate| format!(", MAX_RATE {rate}")).unwrap_or_default();
        return format!(
            "BASE_BACKUP (LABEL {label}, PROGRESS {}, CHECKPOINT '{checkpoint}', WAL {}, WAIT {}, MANIFEST 'no'{rate})",
            options.progress, options.wal, options.wait_for_archive
        );
    }
    let mut command = format!("BASE_BACKUP LABEL {label}");
    let words = [
        (options.progress, " PROGRESS"),
        (options.fast_checkpoint, " FAST"),
        (options.wal, " WAL"),
        (!options.wait_for_archive, " NOWAIT"),
    ];
    words.iter().filter(|(wanted, _)| *wanted).for_each(|(_, word)| command.push_str(word));
    if let Some(rate) = options.max_rate {
        command.push_str(&format!(" MAX_RATE {rate}"));
    }
    command
}

fn position(rows: &[Row], what: &'static str) -> Result<BackupPosition, ClientError> {
    let row = rows.first().ok_or(ProtocolError::Malformed(what))?;
    Ok(BackupPosition { lsn: parse(row, 0, what)?, timeline: parse(row, 1, what)? })
}

fn tablespace(row: &Row) -> Result<Tablespace, ClientError> {
    let oid = if text(row, 0).is_some() { Some(parse(row, 0, "tablespace OID")?) } else { None };
    Ok(Tablespace { oid, location: text(row, 1), size_kb: text(row, 2).and_then(|size| size.parse().ok()) })
}

impl BaseBackup {
    /// Where it begins: WAL is needed from here on.
    pub fn start(&self) -> BackupPosition {
        self.start
    }

    /// Its tablespaces.
    pub fn tablespaces(&self) -> &[Tablespace] {
        &self.tablespaces
    }

    /// Where the copy has become consistent. Known once [`BaseBackup::next`] has returned `None`.
    pub fn end(&self) -> Option<BackupPosition> {
        self.end
    }

    /// The connection, for other commands; `None` if the backup is not finished.
    pub fn into_client(self) -> Option<ReplicationClient> {
        (self.state == State::Finished).then_some(self.client)
    }

    /// The next event; `None` at the end. Cancellation safe.
    pub async fn next(&mut self) -> Result<Option<BackupEvent>, ClientError> {
        while self.state != State::Finished {
            let message = self.client.client.receive().await?;
            if let Some(event) = self.take(message)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn take(&mut self, message: BackendMessage) -> Result<Option<BackupEvent>, ClientError> {
        match (self.state, message) {
            (State::Between, BackendMessage::CopyOutResponse) => {
                self.state = State::Copying;
                return if self.typed() { Ok(None) } else { self.next_archive().map(Some) };
            }
            (State::Between, BackendMessage::RowDescription(_) | BackendMessage::CommandComplete(_)) => {}
            (State::Between, BackendMessage::DataRow(row)) => {
                self.end = Some(position(&[row], "end of the base backup")?);
            }
            (State::Between, BackendMessage::ReadyForQuery) => {
                self.end.ok_or(ProtocolError::Malformed("end of the base backup"))?;
                self.state = State::Finished;
            }
            (State::Copying | State::Manifest, BackendMessage::CopyDone) => self.state = State::Between,
            (State::Copying, BackendMessage::CopyData(bytes)) if !self.typed() => {
                return Ok(Some(BackupEvent::Data(bytes)));
            }
            (State::Copying | State::Manifest, BackendMessage::CopyData(bytes)) => return self.take_typed(bytes),
            (_, other) => return Err(unexpected(&other, "receiving a base backup")),
        }
        Ok(None)
    }

    fn typed(&self) -> bool {
        self.client.server_major >= 15
    }

    fn next_archive(&mut self) -> Result<BackupEvent, ClientError> {
        let next = self.to_come.pop_front().ok_or(ProtocolError::Malformed("base backup: one archive too many"))?;
        let name = next.oid.map_or_else(|| "base.tar".to_owned(), |oid| format!("{oid}.tar"));
        Ok(BackupEvent::NewArchive { name, spcoid: next.oid, path: next.location })
    }

    fn take_typed(&mut self, bytes: Bytes) -> Result<Option<BackupEvent>, ClientError> {
        let mut fields = Fields::new(bytes, "piece of a base backup");
        match fields.u8()? {
            b'n' => {
                self.state = State::Copying;
                let (name, path) = (fields.text()?, fields.text()?);
                let path = Some(path).filter(|path| !path.is_empty());
                let spcoid = name.split('.').next().and_then(|oid| oid.parse().ok());
                Ok(Some(BackupEvent::NewArchive { name, spcoid, path }))
            }
            b'm' => {
                self.state = State::Manifest;
                Ok(None)
            }
            b'd' if self.state == State::Manifest => Ok(None),
            b'd' => Ok(Some(BackupEvent::Data(fields.rest()))),
            b'p' => Ok(Some(BackupEvent::Progress(fields.u64()?))),
            _ => Err(fields.malformed().into()),
        }
    }
}
