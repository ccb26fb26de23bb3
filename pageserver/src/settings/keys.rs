//! The table of all keys.

use std::num::NonZeroUsize;
use std::time::Duration;

use camino::Utf8PathBuf;
use pageserver_api::models::virtual_file::IoMode;

use super::value::{AuthType, IoEngineChoice, LogFormat, SettingValue};
use engine::config::AttachOnStart;

/// One key, as people need to know it.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// Which part of the process it is about.
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

        /// Every key there is, in the order of the file.
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
            /// Sets a key of [`KEYS`] by its name; the error says what is wrong with the value.
            pub(super) fn set(&mut self, name: &str, value: &toml::Value) -> Result<(), String> {
                match name {
                    $($(stringify!($name) => self.$name = SettingValue::parse(value)?,)+)+
                    _ => return Err("no such key".to_owned()),
                }
                Ok(())
            }

            /// The value of a key, as it would stand in the file.
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
        /// Where the page service listens. Port 0 takes any free port; `pageserver.addr` in the working directory
        /// then tells which.
        listen_pg_addr: String = "127.0.0.1:64000", "host:port";
        /// Where the management interface (HTTP) listens.
        listen_http_addr: String = "127.0.0.1:9898", "host:port";
        /// Listen beyond loopback even where callers need not prove who they are.
        allow_insecure_listen: bool = false, "true or false";
        /// Listen beyond loopback without TLS where callers give tokens: something else encrypts what goes over the
        /// network, such as a proxy on another machine. Whoever can listen in may use the tokens.
        allow_plaintext_tokens: bool = false, "true or false";
        /// Most connections to the page service at once; further ones are refused.
        max_connections: NonZeroUsize = 4096, "connections";
        /// Most connections to the management interface at once; further ones wait.
        http_max_connections: NonZeroUsize = 256, "connections";
        /// A request to the management interface that takes longer is answered with 408.
        http_request_timeout: Duration = "5m", "duration";
    }
    "Authentication" {
        /// Who may use the page service: `Trust` everybody, `JWT` (or `NeonJWT`) bearers of a token.
        pg_auth_type: AuthType = "Trust", "Trust or JWT";
        /// Who may use the management interface: `Trust` everybody, `JWT` (or `NeonJWT`) bearers of a token.
        http_auth_type: AuthType = "Trust", "Trust or JWT";
        /// Ed25519 public keys that tokens may be signed with: a PEM file, or a directory whose files end in `.pem`.
        /// Read again on SIGHUP and `POST /v1/reload_auth_validation_keys`.
        auth_validation_public_key_path: Utf8PathBuf = "auth_public_key.pem", "path";
    }
    "TLS" {
        /// Only TLS on the page service's port.
        enable_tls_page_service_api: bool = false, "true or false";
        /// Only TLS on the management interface's port.
        enable_tls_http_api: bool = false, "true or false";
        /// Certificate chain, PEM.
        ssl_cert_file: Utf8PathBuf = "server.crt", "path";
        /// The certificate's private key, PEM.
        ssl_key_file: Utf8PathBuf = "server.key", "path";
    }
    "Memory and files" {
        /// Memory for index pages of layers and for rebuilt pages.
        page_cache_size: NonZeroUsize = 8192, "pages of 8 KiB";
        /// Files that may be open at once; the process's limit is raised to it where allowed.
        max_file_descriptors: NonZeroUsize = 4096, "files";
        /// Which system interface does file I/O; `auto` is io_uring where it works.
        virtual_file_io_engine: IoEngineChoice = "auto", "auto, std-fs or tokio-epoll-uring";
        /// When files bypass the kernel's page cache: never, for reads, for reads and writes.
        virtual_file_io_mode: IoMode = "direct-rw", "buffered, direct or direct-rw";
    }
    "Writing" {
        /// An in-memory layer is frozen at this many bytes of values, or when this many bytes of WAL have gone by.
        checkpoint_distance: u64 = 268_435_456, "bytes";
        /// An in-memory layer of this age is frozen.
        checkpoint_timeout: Duration = "10m", "duration";
        /// Newest values of each in-memory layer that stay in memory although they are on disk already, for reads of
        /// what has just changed.
        ephemeral_keep_bytes: u64 = 16_777_216, "bytes";
        /// Frozen layers that are written to disk at once.
        l0_flush_max_concurrency: NonZeroUsize = 2, "layers";
    }
    "Reading" {
        /// How long a read waits for WAL that has not arrived.
        wait_lsn_timeout: Duration = "5m", "duration";
        /// How long a lease keeps an LSN readable.
        lsn_lease_length: Duration = "10m", "duration";
        /// Most keys in one vectored read.
        max_get_vectored_keys: NonZeroUsize = 32, "keys";
        /// Most page requests of one connection that are served by one read; at most `max_get_vectored_keys`.
        page_service_max_batch_size: NonZeroUsize = 32, "requests";
    }
    "Object storage" {
        /// Where everything stored is kept in the end: `file:DIR` or `file:///DIR` (a directory; a relative one is
        /// below the working directory), `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX`, `az://CONTAINER/PREFIX`, or
        /// `none`: this disk is all there is.
        remote_storage: String = "file:objects", "URL or none";
        /// Where the store answers, such as `http://127.0.0.1:8333`, if it is not the cloud that the URL stands for.
        remote_storage_endpoint: String = "", "URL";
        /// The bucket's region. Empty: as the environment says.
        remote_storage_region: String = "", "name";
        /// Name an S3 bucket in the path of requests, which every server of this kind knows, and not in the host name.
        remote_storage_path_style: bool = true, "true or false";
        /// Talk to the endpoint without TLS.
        remote_storage_allow_http: bool = false, "true or false";
        /// Sign the contents of what is written to S3, by a SHA-256 that costs both sides processor time. Without it
        /// they have a CRC-64/NVME instead, which a server that knows it verifies; TLS protects them on their way.
        remote_storage_sign_payload: bool = true, "true or false";
        /// A TOML file with `access_key_id`, `secret_access_key` and perhaps `session_token`, read again whenever it
        /// has changed. Empty: the cloud's usual environment variables, files and instance roles.
        remote_storage_credentials_file: Utf8PathBuf = "", "path";
        /// How long one attempt of a request may take, and a second more for each MiB that it moves.
        remote_storage_timeout: Duration = "15s", "duration";
        /// A request that keeps failing is tried again for this long before it fails.
        remote_storage_retry_deadline: Duration = "1m", "duration";
        /// Most uploads at once, each of at most 16 MiB.
        remote_storage_concurrency: NonZeroUsize = 8, "requests";
        /// Most reads at once, which never wait for uploads.
        remote_storage_read_concurrency: NonZeroUsize = 64, "requests";
        /// How long a start waits for a store that does not answer.
        remote_storage_start_timeout: Duration = "1m", "duration";
        /// Which tenants are attached at a start: this server's `own`, of which it was the last owner, and those that
        /// nobody has owned; those that are `local`, whoever owned them last; or `all` that the store has.
        attach_on_start: AttachOnStart = "own", "own, local or all";
        /// Who this server is, by which the store remembers the owner of a tenant. To take the place of a server that
        /// is lost, give its id. Empty: made of the machine, its name and the working directory, so that it stays the
        /// same when the disk is lost; drawn where the machine has no id, as in containers: give one there.
        server_id: String = "", "name";
    }
    "Local disk" {
        /// Memory for blocks of layers that are not on the local disk: cached, fetched ahead, and on their way.
        block_cache_memory: u64 = 100_663_296, "bytes";
        /// Local disk for blocks of layers that are not there as a whole.
        block_cache_disk: u64 = 1_073_741_824, "bytes";
        /// Most bytes that one request fetches ahead of a sequential read. A sixth of `block_cache_memory` at most.
        read_ahead_max: u64 = 4_194_304, "bytes";
        /// A layer is fetched whole once reads have cost this much of that; a request is 128 KiB. Above 100: never.
        prefetch_whole_after: u64 = 50, "percent";
        /// Most local disk for everything stored; layers that the store has make room for others. 0: the whole disk.
        disk_budget: u64 = 0, "bytes";
        /// Local disk that stays free. 0: 2 GiB or 5 % of the file system, whichever is less.
        disk_reserve: u64 = 0, "bytes";
    }
    "Process" {
        /// How log lines look: for people, or one JSON object a line.
        log_format: LogFormat = "human", "human or json";
        /// Which log lines are written, such as `info` or `info,pageserver::walreceiver=debug`.
        log_filter: String = "info", "filter";
        /// After SIGTERM, whatever does not end within this time is cut off, and the exit code is not 0.
        shutdown_timeout: Duration = "20s", "duration";
    }
}
