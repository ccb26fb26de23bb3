//! What a gateway is told.

use std::time::Duration;

use tokio_rustls::TlsAcceptor;

/// How a gateway behaves.
#[derive(Clone)]
pub struct Settings {
    /// TLS to offer.
    pub tls: Option<TlsAcceptor>,
    /// Refuse clients without TLS.
    pub require_tls: bool,
    /// `NAME.DOMAIN` as the server name of TLS means the branch NAME.
    pub domain: Option<String>,
    /// The branch of clients that name none.
    pub default_branch: Option<String>,
    /// Connections at once, and of these to one branch or moment.
    pub connections_max: usize,
    /// See [`Self::connections_max`].
    pub branch_connections_max: usize,
    /// Computes that are awake at once.
    pub computes_max: usize,
    /// Computes that are started at once; others wait in a queue.
    pub wakes_max: usize,
    /// How long a client may take to say what it wants.
    pub login_limit: Duration,
    /// How long a client waits for its compute, the queue included.
    pub wake_limit: Duration,
    /// A compute sleeps when nobody has been connected to it for this long; never without.
    pub idle_timeout: Option<Duration>,
}
