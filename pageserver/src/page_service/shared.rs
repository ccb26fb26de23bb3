//! State shared by all connections.

use std::sync::OnceLock;
use std::time::Duration;

use pq_proto::server::ServerOptions;
use tokio_rustls::TlsAcceptor;

use super::command;
use super::rel_sizes::RelSizes;
use crate::auth::Auth;
use crate::places::Places;
use crate::walreceiver::StandbyReads;
use engine::tenant::manager::TenantManager;

/// Settings of the page service.
#[derive(Clone)]
pub struct PageServiceSettings {
    /// If set, clients must use TLS.
    pub tls: Option<TlsAcceptor>,
    /// Maximum number of concurrent clients.
    pub max_connections: usize,
    /// Time limit from the first byte until the client is authenticated.
    pub handshake_timeout: Duration,
    /// A client that neither sends nor receives anything for this long is disconnected.
    pub idle_timeout: Duration,
    /// Maximum number of pages read together.
    pub max_batch_size: usize,
    /// How long a lease keeps an LSN readable.
    pub lease_length: Duration,
}

impl Default for PageServiceSettings {
    fn default() -> Self {
        Self {
            tls: None,
            max_connections: 4096,
            handshake_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            max_batch_size: 128,
            lease_length: Duration::from_secs(600),
        }
    }
}

/// State shared by all connections.
pub(super) struct Shared {
    pub(super) manager: TenantManager,
    pub(super) auth: Auth,
    pub(super) settings: PageServiceSettings,
    pub(super) sizes: RelSizes,
    pub(super) places: Places,
    /// Reads of tenants of which this server is a standby, if it serves those.
    pub(super) standby_reads: OnceLock<StandbyReads>,
}

impl Shared {
    pub(super) fn server_options(&self) -> ServerOptions {
        ServerOptions {
            tls: self.settings.tls.clone(),
            handshake_timeout: self.settings.handshake_timeout,
            idle_timeout: self.settings.idle_timeout,
            describe: command::columns,
        }
    }
}
