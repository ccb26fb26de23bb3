//! What all connections have in common.

use std::time::Duration;

use pq_proto::server::ServerOptions;
use tokio_rustls::TlsAcceptor;

use super::command;
use super::rel_sizes::RelSizes;
use crate::auth::Auth;
use crate::places::Places;
use engine::tenant::manager::TenantManager;

/// Settings of the page service.
#[derive(Clone)]
pub struct PageServiceSettings {
    /// With it, clients must use TLS.
    pub tls: Option<TlsAcceptor>,
    /// Clients at the same time.
    pub max_connections: usize,
    /// From the first byte until the client is let in.
    pub handshake_timeout: Duration,
    /// A client that says nothing for so long, or takes nothing, is disconnected.
    pub idle_timeout: Duration,
    /// Pages that are read together, at most.
    pub max_batch_size: usize,
    /// How long an LSN stays readable that a client has taken a lease of.
    pub lease_length: Duration,
}

impl Default for PageServiceSettings {
    fn default() -> Self {
        Self {
            tls: None,
            max_connections: 4096,
            handshake_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(600),
            max_batch_size: 32,
            lease_length: Duration::from_secs(600),
        }
    }
}

/// What all connections have in common.
pub(super) struct Shared {
    pub(super) manager: TenantManager,
    pub(super) auth: Auth,
    pub(super) settings: PageServiceSettings,
    pub(super) sizes: RelSizes,
    pub(super) places: Places,
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
