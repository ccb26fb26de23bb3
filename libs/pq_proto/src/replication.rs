//! Physical replication: identity, slots, base backups, the WAL stream
//! (`src/backend/replication/repl_gram.y`, `walsender.c`, `basebackup_copy.c` of Postgres).

mod base_backup;
mod command;
mod connection;
mod identity;
mod physical;
#[cfg(test)]
mod tests;

pub use base_backup::{BackupEvent, BackupPosition, BaseBackup, BaseBackupOptions, Tablespace};
pub use connection::ReplicationClient;
pub use identity::{SlotInfo, SystemIdentity, TimelineHistory};
pub use physical::{PhysicalEvent, PhysicalStream, StandbyStatus};
