//! Settings of the process: `pageserver.toml`, then the environment, then flags; the later ones take precedence.
//!
//! [`KEYS`] is the single table of all keys, from which both the commented file of `pageserver init` and the table in
//! `docs/configuration.md` are generated. Unknown keys are refused with a suggestion of the nearest known one.

mod identity;
mod keys;
mod load;
mod machine;
mod template;
#[cfg(test)]
mod tests;
mod value;

use std::net::SocketAddr;

use camino::{Utf8Path, Utf8PathBuf};

use engine::config::{AttachOnStart, CompactionPolicy, LeasePolicy, PageServerConf, RetentionPolicy};
use pgdata::PostgresKeys;
use pgdata::size_changes::SizeChanges;
use remote_storage::{RemoteOptions, RemoteUrl, StoreSettings};

pub(crate) use identity::defect as server_id_defect;
pub use keys::{KEYS, Key, Settings};
pub use load::{Overrides, SettingsError};
pub use template::{commented_file, markdown_table};
pub use value::{AuthType, Durability, HostPort, IoEngineChoice, LogFormat, WebUrl};

/// Name of the file in the working directory.
pub const FILE_NAME: &str = "pageserver.toml";
/// Prefix of the environment variables, followed by the key in capitals.
pub const ENV_PREFIX: &str = "PAGESERVER_";

/// In-memory layers have at most this share of the machine's memory for their values.
const EPHEMERAL_SHARE: u64 = 8;

/// One port of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// The page service.
    Pg,
    /// The management interface.
    Http,
}

impl Settings {
    /// The engine's configuration, with `workdir` as its directory.
    pub fn engine_conf(&self, workdir: Utf8PathBuf) -> PageServerConf {
        let mut conf = PageServerConf::dummy_conf(workdir);
        conf.page_cache_size = self.page_cache_size.get();
        conf.virtual_file_io_mode = self.virtual_file_io_mode;
        conf.virtual_file_io_engine = self.virtual_file_io_engine.0;
        conf.checkpoint_distance = self.checkpoint_distance;
        conf.checkpoint_timeout = self.checkpoint_timeout;
        conf.ephemeral_keep_bytes = self.ephemeral_keep_bytes;
        conf.ephemeral_memory = self.ephemeral_memory.min(machine::memory() / EPHEMERAL_SHARE);
        // Also for programs that open single timelines.
        conf.resources.kept.set_limit(conf.ephemeral_memory);
        conf.bucket_tail_interval = Some(self.bucket_tail_interval).filter(|interval| !interval.is_zero());
        conf.l0_flush_max_concurrency = self.l0_flush_max_concurrency;
        conf.wait_lsn_timeout = self.wait_lsn_timeout;
        conf.slow_read_threshold = self.slow_read_threshold;
        conf.lsn_lease_length = self.lsn_lease_length;
        conf.compaction = self.compaction();
        conf.retention = self.retention();
        // One that only reads the bucket owns nothing in it.
        conf.lease = if self.remote_storage_scratch.as_str().is_empty() { self.lease() } else { LeasePolicy::OFF };
        conf.max_get_vectored_keys = self.max_get_vectored_keys;
        conf.page_service_max_batch_size = self.page_service_max_batch_size;
        conf.attach_on_start = self.attach_on_start;
        conf.block_cache_memory = self.block_cache_memory;
        conf.remote_storage_start_timeout = self.remote_storage_start_timeout;
        conf.block_cache_disk = self.block_cache_disk;
        conf.read_ahead_max = self.read_ahead_max;
        conf.prefetch_whole_after = self.prefetch_whole_after;
        conf.open_ahead_max = self.open_ahead_max;
        conf.disk_budget_bytes = self.disk_budget;
        conf.disk_reserve = self.disk_reserve;
        conf.live_keys = Some(&PostgresKeys);
        conf.observer = Some(SizeChanges::observer);
        conf
    }

    fn compaction(&self) -> CompactionPolicy {
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let threshold = count(self.compaction_threshold);
        CompactionPolicy {
            l0_layers: threshold,
            l0_layers_max: threshold.saturating_mul(2),
            file_bytes: self.compaction_target_size,
            height: count(self.compaction_height),
            job_bytes: self.compaction_target_size.saturating_mul(8),
            memory: self.compaction_memory,
            // Nobody makes them fewer if nothing is compacted.
            l0_slow: if threshold > 0 { count(self.compaction_l0_slow) } else { 0 },
            l0_wait: count(self.compaction_l0_wait),
            ..CompactionPolicy::ON
        }
    }

    fn lease(&self) -> LeasePolicy {
        LeasePolicy { interval: self.lease_interval, takeover_after: self.takeover_after, keep: self.keep_lease }
    }

    fn retention(&self) -> RetentionPolicy {
        RetentionPolicy {
            pitr_interval: self.pitr_interval,
            gc_horizon: self.gc_horizon,
            history_max_bytes: self.history_max_bytes,
            gc_period: self.gc_period,
            quiet_after_attach: self.gc_pause_after_attach,
        }
    }

    /// What the journal may take, if there is to be one.
    ///
    /// # Errors
    /// If the other settings do not go with a journal.
    pub fn journal(&self) -> Result<Option<journal::Options>, String> {
        if self.durability == Durability::Bucket {
            return Ok(None);
        }
        let (bucket, scratch) = (&self.remote_storage, &self.remote_storage_scratch);
        if bucket != "none" && (self.attach_on_start != AttachOnStart::Own || !scratch.as_str().is_empty()) {
            let reason = "a journal needs attach_on_start = \"own\", and no remote_storage_scratch: what it has of a \
                          tenant is void once another server has had that";
            return Err(reason.to_owned());
        }
        let options = journal::Options { bytes: self.journal_size, ..journal::Options::default() };
        if options.bytes < 4 * u64::from(options.segment_bytes) {
            return Err(format!("a journal takes at least {} bytes: raise journal_size", 4 * options.segment_bytes));
        }
        Ok(Some(options))
    }

    /// The bucket, as described by the settings.
    ///
    /// # Errors
    /// If `remote_storage` is not the URL of a bucket; such values are already refused when settings are read.
    pub fn store(&self, workdir: &Utf8Path) -> Result<StoreSettings, String> {
        let given = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let url = RemoteUrl::parse(&self.remote_storage)?.below(workdir);
        let name = match &url {
            RemoteUrl::Directory(path) => format!("file://{path}"),
            _ => self.remote_storage.clone(),
        };
        let credentials = &self.remote_storage_credentials_file;
        let scratch = &self.remote_storage_scratch;
        Ok(StoreSettings {
            url,
            name,
            endpoint: given(&self.remote_storage_endpoint),
            region: given(&self.remote_storage_region),
            path_style: self.remote_storage_path_style,
            allow_http: self.remote_storage_allow_http,
            sign_payload: self.remote_storage_sign_payload,
            credentials_file: Some(Self::path(workdir, credentials)).filter(|_| !credentials.as_str().is_empty()),
            scratch: Some(Self::path(workdir, scratch)).filter(|_| !scratch.as_str().is_empty()),
            options: RemoteOptions {
                attempt_timeout: self.remote_storage_timeout,
                retry_deadline: self.remote_storage_retry_deadline,
                upload_concurrency: self.remote_storage_concurrency,
                read_concurrency: self.remote_storage_read_concurrency,
                ..RemoteOptions::default()
            },
        })
    }

    /// The path of a file named by a setting; relative paths are below the working directory.
    pub fn path(workdir: &Utf8Path, setting: &Utf8Path) -> Utf8PathBuf {
        workdir.join(setting)
    }

    /// Checks whether listening on `addr` is safe with the configured authentication and encryption. If it is unsafe
    /// but explicitly permitted, returns a warning.
    ///
    /// # Errors
    /// If other machines could reach a port that requires no authentication, or whose tokens would cross the network
    /// in the clear, and no setting permits this.
    pub fn check_exposure(&self, port: Port, addr: SocketAddr) -> Result<Option<String>, String> {
        let (key, auth_key, auth) = match port {
            Port::Pg => ("listen_pg_addr", "pg_auth_type", self.pg_auth_type),
            Port::Http => ("listen_http_addr", "http_auth_type", self.http_auth_type),
        };
        let (tls_key, tls) = match port {
            Port::Pg => ("enable_tls_page_service_api", self.enable_tls_page_service_api),
            Port::Http => ("enable_tls_http_api", self.enable_tls_http_api),
        };
        let open = auth == AuthType::Trust;
        if addr.ip().to_canonical().is_loopback() || (tls && !open) {
            return Ok(None);
        }
        let open_to_all = Some("allow_insecure_listen").filter(|_| self.allow_insecure_listen);
        let (danger, remedy, permitted, permit) = if open {
            let danger = format!("{auth_key} is Trust: anybody could read and delete everything");
            let remedy = format!("Set {auth_key} to JWT, and {tls_key} to true");
            (danger, remedy, open_to_all, "allow_insecure_listen")
        } else {
            let danger = format!(
                "{tls_key} is false: tokens and pages go over the network in the clear, and whoever sees a token may \
                 use it"
            );
            let remedy = format!("Set {tls_key} to true, with ssl_cert_file and ssl_key_file");
            let plaintext = Some("allow_plaintext_tokens").filter(|_| self.allow_plaintext_tokens);
            (danger, remedy, plaintext.or(open_to_all), "allow_plaintext_tokens")
        };
        let said = format!("{key} = {addr} can be reached from other machines, and {danger}");
        if let Some(setting) = permitted {
            return Ok(Some(format!("{said}. {setting} permits it")));
        }
        Err(format!("{said}. {remedy}, listen on a loopback address, or set {permit} to true"))
    }
}
