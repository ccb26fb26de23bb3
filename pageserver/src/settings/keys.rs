//! The table of all keys.

use std::num::NonZeroUsize;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::models::virtual_file::IoMode;

use super::value::{AuthType, Durability, HostPort, IoEngineChoice, LogFormat, SettingValue, WebUrl};
use engine::config::AttachOnStart;

/// Description of one key.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The part of the process that it concerns.
    pub group: &'static str,
    /// Its name.
    pub name: &'static str,
    /// Unit, or kind of value.
    pub unit: &'static str,
    /// What it does.
    pub doc: &'static str,
    pub(super) default: fn() -> toml::Value,
}

impl Key {
    /// Its default.
    pub fn default_value(&self) -> toml::Value {
        (self.default)()
    }
}

macro_rules! settings {
    ($($group:literal { $($(#[doc = $doc:literal])+ $name:ident: $type:ty = $default:literal, $unit:literal;)+ })+) => {
        /// All settings of the process.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Settings {
            $($($(#[doc = $doc])+ pub $name: $type,)+)+
        }

        /// All keys, in the order of the file.
        pub static KEYS: &[Key] = &[$($(Key {
            group: $group,
            name: stringify!($name),
            unit: $unit,
            doc: concat!($($doc),+),
            default: || toml::Value::from($default),
        },)+)+];

        impl Default for Settings {
            fn default() -> Self {
                Self { $($($name: SettingValue::parse(&toml::Value::from($default))
                    .expect("the tests parse every default"),)+)+ }
            }
        }

        impl Settings {
            /// Sets a key of [`KEYS`] by its name; the error describes what is wrong with the value.
            pub(super) fn set(&mut self, name: &str, value: &toml::Value) -> Result<(), String> {
                match name {
                    $($(stringify!($name) => self.$name = SettingValue::parse(value)?,)+)+
                    _ => return Err("no such key".to_owned()),
                }
                Ok(())
            }

            /// The value of a key, as in the file.
            pub fn get(&self, name: &str) -> Option<toml::Value> {
                match name {
                    $($(stringify!($name) => Some(self.$name.print()),)+)+
                    _ => None,
                }
            }
        }
    };
}

settings! {
    "Ports" {
        /// Address of the page service. With port 0 any free port is used; `pageserver.addr` in the working directory
        /// then has the actual one.
        listen_pg_addr: String = "127.0.0.1:64000", "host:port";
        /// Address of the management interface (HTTP).
        listen_http_addr: String = "127.0.0.1:9898", "host:port";
        /// Permit listening beyond loopback even where callers need not authenticate.
        allow_insecure_listen: bool = false, "true or false";
        /// Permit listening beyond loopback without TLS where callers send tokens. Something else must then encrypt
        /// the traffic, such as a proxy on another machine: whoever can eavesdrop may use the tokens.
        allow_plaintext_tokens: bool = false, "true or false";
        /// Maximum number of connections to the page service; further ones are refused.
        max_connections: NonZeroUsize = 4096, "connections";
        /// Maximum number of connections to the management interface that work at the same time; further ones wait.
        http_max_connections: NonZeroUsize = 256, "connections";
        /// Requests to the management interface that take longer are answered with 408.
        http_request_timeout: Duration = "5m", "duration";
        /// Names by which the management interface may be asked where callers need no token, separated by commas,
        /// besides addresses, `localhost`, the machine's name, and those in `listen_http_addr` and `public_url`. `*`
        /// is any: then a page of anybody may act here with a browser that can reach this server.
        allowed_hosts: String = "", "names";
        /// Where people find the console of this server: consoles of other servers on the same bucket link to it.
        /// Empty: the address that it listens on, or the machine's name if that is any address.
        public_url: WebUrl = "", "URL";
        /// Serve the console, a page for people, at `/` of the management interface.
        console: bool = true, "true or false";
        /// Where `pagectl compute serve` listens, on loopback: the console then shows its computes, and starts and
        /// stops them, for those who also have its token. Empty: it shows what the server itself knows of computes.
        console_computes: HostPort = "", "address:port";
    }
    "Authentication" {
        /// Who may use the page service: `Trust` for everybody, `JWT` (or `NeonJWT`) for bearers of a token.
        pg_auth_type: AuthType = "Trust", "Trust or JWT";
        /// Who may use the management interface: `Trust` for everybody, `JWT` (or `NeonJWT`) for bearers of a token.
        http_auth_type: AuthType = "Trust", "Trust or JWT";
        /// Ed25519 public keys for token signatures: a PEM file, or a directory with files whose names end in `.pem`.
        /// Reloaded on SIGHUP and `POST /v1/reload_auth_validation_keys`.
        auth_validation_public_key_path: Utf8PathBuf = "auth_public_key.pem", "path";
    }
    "TLS" {
        /// Require TLS on the page service's port.
        enable_tls_page_service_api: bool = false, "true or false";
        /// Require TLS on the management interface's port.
        enable_tls_http_api: bool = false, "true or false";
        /// Certificate chain, PEM.
        ssl_cert_file: Utf8PathBuf = "server.crt", "path";
        /// The certificate's private key, PEM.
        ssl_key_file: Utf8PathBuf = "server.key", "path";
    }
    "Compaction" {
        /// Number of L0 layers, as flushes write them, that are sorted together; 0 disables compaction: then reads
        /// become longer with each layer, and no history is removed.
        compaction_threshold: u64 = 4, "layers";
        /// Intended size of a sorted layer.
        compaction_target_size: u64 = 134_217_728, "bytes";
        /// Memory that each of two jobs, which may run at once, takes for what it reads: with less it reads more
        /// often.
        compaction_memory: u64 = 100_663_296, "bytes";
        /// Number of sorted layers that may lie above an image of the same keys before some are merged.
        compaction_height: u64 = 6, "layers";
        /// From this many L0 layers on, ingest is slowed so that compaction keeps up; 0 never slows it.
        compaction_l0_slow: u64 = 6, "layers";
        /// At this many L0 layers ingest waits for compaction; where a layer is written out on request, there may be
        /// one more.
        compaction_l0_wait: u64 = 12, "layers";
    }
    "History" {
        /// History that arrived within this time is kept: any moment of it can be read, and branched from. Older
        /// history is removed, but for what branches, leases and holds need.
        pitr_interval: Duration = "7days", "duration";
        /// Bytes of WAL up to the last record that are kept, however long ago they arrived.
        gc_horizon: u64 = 67_108_864, "bytes";
        /// History goes beyond so many bytes of WAL before the last record, even if `pitr_interval` would keep it.
        /// 0: no limit. At least `gc_horizon`.
        history_max_bytes: u64 = 0, "bytes";
        /// How often history that nothing keeps is removed. After a period such as `1000d` it is only on request.
        gc_period: Duration = "10m", "duration";
        /// How long after a tenant was attached nothing of it is removed, since the list of its branches in the bucket
        /// may lag. Without a bucket this does not apply.
        gc_pause_after_attach: Duration = "15m", "duration";
        /// How many branches a tenant may have; what was never a branch does not count. 0: no limit.
        max_branches: u64 = 0, "branches";
    }
    "Memory and files" {
        /// Memory for index pages of layers and for rebuilt pages.
        page_cache_size: NonZeroUsize = 8192, "pages of 8 KiB";
        /// Maximum number of open files; the process's limit is raised to it where permitted.
        max_file_descriptors: NonZeroUsize = 4096, "files";
        /// Which system interface performs file I/O; `auto` is io_uring where it works.
        virtual_file_io_engine: IoEngineChoice = "auto", "auto, std-fs or tokio-epoll-uring";
        /// When files bypass the kernel's page cache: never, for reads, or for reads and writes.
        virtual_file_io_mode: IoMode = "direct-rw", "buffered, direct or direct-rw";
    }
    "Writing" {
        /// An in-memory layer is frozen when it has this many bytes of values, or when it spans this many bytes of
        /// WAL, or an eighth of what the local disk may take, if that is less.
        checkpoint_distance: u64 = 268_435_456, "bytes";
        /// Age at which an in-memory layer is frozen.
        checkpoint_timeout: Duration = "10m", "duration";
        /// What commits wait for on a server with `synchronous_commit = on` that waits for this one: until the
        /// `bucket` has what they wrote, or the local disk without one; or until the `journal` on the local disk has
        /// it, which takes milliseconds.
        durability: Durability = "bucket", "bucket or journal";
        /// Bytes that the journal's files may take. Above that, timelines are written to layers that need the oldest;
        /// at half as much again intake waits.
        journal_size: u64 = 1_073_741_824, "bytes";
        /// With a journal: how often WAL that only the journal has is put into the bucket, in objects of at most 8 MiB,
        /// for whoever attaches the tenant after the loss of this disk and of the Postgres. Idle tenants make no
        /// requests. Zero: never.
        bucket_tail_interval: Duration = "5s", "duration";
        /// Bytes of the newest values of each in-memory layer that stay in memory although they are also on disk, for
        /// reads of recent changes.
        ephemeral_keep_bytes: u64 = 16_777_216, "bytes";
        /// Memory for all values of in-memory layers, so that a layer that is full is written out without being read.
        /// Layers for which there is none left keep `ephemeral_keep_bytes`. Never more than an eighth of the machine's
        /// memory, or of what its control group permits.
        ephemeral_memory: u64 = 805_306_368, "bytes";
        /// Maximum number of frozen layers that are flushed concurrently.
        l0_flush_max_concurrency: NonZeroUsize = 2, "layers";
    }
    "Reading" {
        /// How long a read waits for WAL that has not arrived.
        wait_lsn_timeout: Duration = "5m", "duration";
        /// A read that takes longer, with its wait for WAL, is explained by a line in the log: how long it waited,
        /// searched, fetched and applied records, and which layers it visited; at most one line a second.
        slow_read_threshold: Duration = "1s", "duration";
        /// How long a lease keeps an LSN readable.
        lsn_lease_length: Duration = "10m", "duration";
        /// Maximum number of keys in one vectored read.
        max_get_vectored_keys: NonZeroUsize = 128, "keys";
        /// Maximum number of page requests of one connection that are served by one read; at most
        /// `max_get_vectored_keys`, below which the default is lowered.
        page_service_max_batch_size: NonZeroUsize = 128, "requests";
    }
    "Object storage" {
        /// The bucket, where everything is eventually stored: `file:DIR` or `file:///DIR` (a directory; a relative
        /// one is below the working directory), `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`,
        /// or `none`, in which case the local disk has the only copy.
        remote_storage: String = "file:objects", "URL or none";
        /// A directory, into which everything goes that this server would write to the bucket; what it would remove is
        /// only hidden from it. So a second server can try things on what a live one serves, with `attach_on_start =
        /// "all"`, and the live one does not notice. A relative one is below the working directory. Empty: none.
        remote_storage_scratch: Utf8PathBuf = "", "path";
        /// Address of the object store, such as `http://127.0.0.1:8333`, if it is not the cloud that the URL implies.
        remote_storage_endpoint: String = "", "URL";
        /// The bucket's region. Empty: taken from the environment.
        remote_storage_region: String = "", "name";
        /// Address an S3 bucket in the path of requests, which every such server supports, instead of in the host
        /// name.
        remote_storage_path_style: bool = true, "true or false";
        /// Talk to the endpoint without TLS.
        remote_storage_allow_http: bool = false, "true or false";
        /// Sign the contents of uploads to S3 with a SHA-256, which costs both sides processor time. Otherwise they
        /// carry a CRC-64/NVME, which servers that support it verify; TLS protects them in transit.
        remote_storage_sign_payload: bool = true, "true or false";
        /// A TOML file with `access_key_id`, `secret_access_key` and optionally `session_token`, reloaded whenever it
        /// changes. Empty: the cloud's usual environment variables, files and instance roles.
        remote_storage_credentials_file: Utf8PathBuf = "", "path";
        /// Time limit for one attempt of a request, plus one second per MiB transferred.
        remote_storage_timeout: Duration = "15s", "duration";
        /// A failing request is retried for this long before it fails.
        remote_storage_retry_deadline: Duration = "1m", "duration";
        /// Maximum number of concurrent uploads, each of at most 16 MiB.
        remote_storage_concurrency: NonZeroUsize = 8, "requests";
        /// Maximum number of concurrent reads, which never wait for uploads.
        remote_storage_read_concurrency: NonZeroUsize = 64, "requests";
        /// How long a start waits for a bucket that does not respond.
        remote_storage_start_timeout: Duration = "1m", "duration";
        /// Which tenants are attached at startup: the server's `own`, that is those which it owned last and those
        /// which nobody has owned; those that are `local`, whoever owned them last; or `all` in the bucket.
        attach_on_start: AttachOnStart = "own", "own, local or all";
        /// Identity of this server, under which the bucket records the owner of a tenant. To replace a lost server,
        /// use its id. Empty: derived from the machine, its name and the working directory, so that it survives the
        /// loss of the disk; random where the machine has no id, as in containers: set one there.
        server_id: String = "", "name";
    }
    "Standbys" {
        /// How often this server renews its lease, an object in the bucket, if standbys ask for one; a standby looks at
        /// it four times as often. With 0 there are neither leases nor standbys.
        lease_interval: Duration = "2s", "duration";
        /// A standby takes over when it has seen the same lease for so long, by its own clock. An owner that could not
        /// renew its lease for a fifth less acknowledges nothing, and serves only what the bucket has. At least three
        /// times `lease_interval`; of two servers the longer one counts.
        takeover_after: Duration = "10s", "duration";
        /// Keep a lease even if no standby asks for one, so that there is one already when the first standby comes.
        keep_lease: bool = false, "true or false";
    }
    "Local disk" {
        /// Memory for blocks of layers that are not on the local disk: cached, prefetched, and in transit.
        block_cache_memory: u64 = 100_663_296, "bytes";
        /// Local disk for blocks of layers that are not resident.
        block_cache_disk: u64 = 1_073_741_824, "bytes";
        /// Maximum number of bytes that one request reads ahead of a sequential read. At most a sixth of
        /// `block_cache_memory`.
        read_ahead_max: u64 = 4_194_304, "bytes";
        /// A layer is fetched whole once reads of it have cost this percentage of doing so, as soon as they pause, or
        /// after 10 s; a request counts as 128 KiB. Above 100: never.
        prefetch_whole_after: u64 = 50, "percent";
        /// As soon as a layer is read that is not on the local disk, all others of the timeline are opened, too, as far
        /// as that needs no more than so many bytes: what is read next waits for fewer requests then. A layer of at
        /// most a quarter of that is fetched whole when it is opened. At most a 24th of `block_cache_memory`. 0:
        /// neither.
        open_ahead_max: u64 = 4_194_304, "bytes";
        /// Maximum local disk space for everything stored; layers that the bucket has are evicted to make room. 0:
        /// the whole disk.
        disk_budget: u64 = 0, "bytes";
        /// Local disk space to keep free. 0: 2 GiB or 5 % of the file system, whichever is less.
        disk_reserve: u64 = 0, "bytes";
    }
    "Process" {
        /// Format of log lines: text for people, or one JSON object per line.
        log_format: LogFormat = "human", "human or json";
        /// Filter for log lines, such as `info` or `info,pageserver::walreceiver=debug`.
        log_filter: String = "info", "filter";
        /// Where an OpenTelemetry collector takes traces of requests, by OTLP over HTTP, such as
        /// `http://127.0.0.1:4318`. Empty: there are none, and they cost nothing.
        traces_to: String = "", "URL";
        /// Of so many requests one is traced, unless its caller has a trace, which decides then. 0: of itself none.
        traces_one_in: u64 = 1000, "requests";
        /// Requests that take longer are traced anyway.
        traces_slow: Duration = "200ms", "duration";
        /// Note each call of the management interface that may change something, as a line of JSON in `audit.jsonl` in
        /// the working directory.
        audit_log: bool = true, "true or false";
        /// Before that file becomes larger than this it is renamed to `audit.jsonl.1`, in place of the one before.
        audit_log_max_bytes: u64 = 16_777_216, "bytes";
        /// After SIGTERM, whatever has not stopped within this time is cut off, and the exit code is not 0.
        shutdown_timeout: Duration = "20s", "duration";
    }
}
