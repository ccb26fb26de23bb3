//! Settings from a cluster's configuration files that a copy of the cluster should have, too.
//!
//! What `ALTER SYSTEM` sets is not in the WAL, so these are as of the import. Settings that belong to the cluster's
//! machine, to its network or to other servers are left out: a copy that archived to the original's location, or
//! waited for its standbys, would do harm. So are those for which the WAL is the better source
//! ([`ClusterParameters`]).
//!
//! [`ClusterParameters`]: pageserver_api::parameters::ClusterParameters

use bytes::Bytes;
use pageserver_api::key::SETTINGS_KEY;
use postgres_formats::conf_file::{self, AUTO_CONF, CONF, Setting};
use serde::{Deserialize, Serialize};

use super::directory::{decode, encode};
use datadir::DataDir;
use errors::StorageError;

/// Larger files are not imported: no server has that many settings.
const MAX_BYTES: usize = 1 << 20;

/// Settings with these prefixes are left out.
const LEFT_OUT_PREFIXES: [&str; 16] = [
    "archive_",
    "bonjour",
    "debug_",
    "hot_standby",
    "huge_page",
    "ignore_",
    "krb_",
    "log_file",
    "log_rotation_",
    "primary_",
    "recovery_",
    "ssl",
    "stats_temp_",
    "syslog_",
    "unix_socket_",
    "wal_receiver_",
];

/// Locations of files, and the network; memory and disk of the machine; logging that would bypass whoever starts the
/// copy; replication and archiving.
const LEFT_OUT: [&str; 53] = [
    "cluster_name",
    "config_file",
    "data_directory",
    "data_sync_retry",
    "db_user_namespace",
    "dynamic_shared_memory_type",
    "event_source",
    "exit_on_error",
    "external_pid_file",
    "fsync",
    "full_page_writes",
    "hba_file",
    "ident_file",
    "idle_replication_slot_timeout",
    "io_max_concurrency",
    "io_method",
    "listen_addresses",
    "log_destination",
    "log_directory",
    "log_truncate_on_rotation",
    "logging_collector",
    "max_files_per_process",
    "max_slot_wal_keep_size",
    "max_stack_depth",
    "max_standby_archive_delay",
    "max_standby_streaming_delay",
    "max_wal_size",
    "min_dynamic_shared_memory",
    "min_wal_size",
    "oauth_validator_libraries",
    "port",
    "promote_trigger_file",
    "reserved_connections",
    "restart_after_crash",
    "restore_command",
    "shared_buffers",
    "shared_memory_type",
    "standby_slot_names",
    "summarize_wal",
    "superuser_reserved_connections",
    "sync_replication_slots",
    "synchronized_standby_slots",
    "synchronous_standby_names",
    "wal_buffers",
    "wal_decode_buffer_size",
    "wal_init_zero",
    "wal_keep_size",
    "wal_recycle",
    "wal_retrieve_retry_interval",
    "wal_sender_timeout",
    "wal_summary_keep_time",
    "wal_sync_method",
    "zero_damaged_pages",
];

/// The WAL has the latest values of these.
const IN_THE_WAL: [&str; 8] = [
    "max_connections",
    "max_locks_per_transaction",
    "max_prepared_transactions",
    "max_wal_senders",
    "max_worker_processes",
    "track_commit_timestamp",
    "wal_level",
    "wal_log_hints",
];

/// Settings of a cluster. Those set by `ALTER SYSTEM` take precedence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterSettings {
    /// From `postgresql.conf`, if it is in the data directory.
    pub conf: Vec<Setting>,
    /// From `postgresql.auto.conf`.
    pub auto: Vec<Setting>,
}

/// The stored form.
#[derive(Default, Serialize, Deserialize)]
struct Stored {
    conf: Vec<(String, Vec<u8>)>,
    auto: Vec<(String, Vec<u8>)>,
}

impl ClusterSettings {
    /// Reads the settings of a data directory. Skips what does not parse as a setting, as a running server does.
    pub fn of(source: &DataDir) -> Result<Self, StorageError> {
        let read = |name: &str| {
            let bytes = source.read_optional(name)?.unwrap_or_default();
            if bytes.len() > MAX_BYTES {
                tracing::warn!("{}: {} bytes: its settings are not taken in", source.root().join(name), bytes.len());
                return Ok(Vec::new());
            }
            Ok::<_, StorageError>(carried(conf_file::parse(&bytes)))
        };
        Ok(Self { conf: read(CONF)?, auto: read(AUTO_CONF)? })
    }

    /// The value of a setting.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let mut all = self.conf.iter().chain(&self.auto).rev();
        all.find(|setting| setting.name == name).map(|setting| &setting.value[..])
    }

    /// Encodes the stored form.
    pub fn encode(&self) -> Bytes {
        let pairs = |settings: &[Setting]| settings.iter().map(|one| (one.name.clone(), one.value.clone())).collect();
        encode(&Stored { conf: pairs(&self.conf), auto: pairs(&self.auto) })
    }

    /// Decodes what [`ClusterSettings::encode`] encodes.
    pub fn decode(bytes: &[u8]) -> Result<Self, StorageError> {
        let Stored { conf, auto } = decode(SETTINGS_KEY, bytes)?;
        let settings = |pairs: Vec<(String, Vec<u8>)>| {
            carried(pairs.into_iter().map(|(name, value)| Setting { name, value }).collect())
        };
        Ok(Self { conf: settings(conf), auto: settings(auto) })
    }
}

fn carried(mut settings: Vec<Setting>) -> Vec<Setting> {
    settings.retain(|setting| is_carried(&setting.name));
    settings
}

/// Whether a copy of the cluster gets the setting. Settings of extensions, which have a dot in their names, are
/// always copied.
fn is_carried(name: &str) -> bool {
    let is_left_out = LEFT_OUT.contains(&name)
        || IN_THE_WAL.contains(&name)
        || LEFT_OUT_PREFIXES.iter().any(|prefix| name.starts_with(prefix));
    name.contains('.') || !is_left_out
}

#[cfg(test)]
mod tests {
    use super::*;
    use postgres_formats::control_file::ClusterState;
    use test_postgres::data_directory::{control, data_dir};

    fn names(settings: &[Setting]) -> Vec<&str> {
        settings.iter().map(|setting| &setting.name[..]).collect()
    }

    #[test]
    fn what_belongs_to_the_machine_or_to_others_is_left_out() {
        let source = data_dir(&control(ClusterState::Shutdowned).encode());
        let conf = "port = 5432\nshared_preload_libraries = 'pg_stat_statements'\nssl = on\nmax_connections = 7\n\
                    archive_command = 'cp %p /archive/%f'\nsynchronous_standby_names = '*'\nwork_mem = 5MB\n";
        let auto = "# Do not edit this file manually!\nwork_mem = '64MB'\nprimary_conninfo = 'password=secret'\n\
                    synchronous_commit = 'off'\nssl.of_an_extension = 'x'\n";
        std::fs::write(source.path().join("postgresql.conf"), conf).unwrap();
        std::fs::write(source.path().join("postgresql.auto.conf"), auto).unwrap();
        let settings = ClusterSettings::of(&DataDir::open(source.path()).unwrap()).unwrap();
        assert_eq!(names(&settings.conf), ["shared_preload_libraries", "work_mem"]);
        assert_eq!(names(&settings.auto), ["work_mem", "synchronous_commit", "ssl.of_an_extension"]);
        assert_eq!(settings.get("work_mem"), Some(&b"64MB"[..]));
        assert_eq!(settings.get("port"), None);
        assert_eq!(ClusterSettings::decode(&settings.encode()).unwrap(), settings);
    }

    #[test]
    fn a_directory_without_files_has_none() {
        let source = data_dir(&control(ClusterState::Shutdowned).encode());
        let source = DataDir::open(source.path()).unwrap();
        assert_eq!(ClusterSettings::of(&source).unwrap(), ClusterSettings::default());
    }
}
