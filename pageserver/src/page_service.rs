//! The port that computes talk to: pages, sizes, base backups and leases over the Postgres protocol.
//!
//! * [`command`]: the commands; [`connection`]: one client.
//! * [`stream`]: requests for pages, grouped into batches ([`batch`]) and answered ([`serve`], [`pages`]).
//! * [`lsn`]: the LSN at which a request is answered; [`rel_sizes`]: cached sizes.
//! * [`backup`]: sending base backups; [`reading`]: what is read, also at a standby.

mod auth;
mod backup;
mod batch;
mod command;
mod connection;
mod errors;
mod lsn;
mod pages;
mod reading;
mod rel_sizes;
mod serve;
mod session;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
mod trace;

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pq_proto::stream::BoxStream;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use shared::PageServiceSettings;
use shared::Shared;

use crate::auth::Auth;
use crate::places::Places;
use crate::walreceiver::StandbyReads;
use engine::tenant::manager::TenantManager;

/// Pause after a failed accept, most often caused by a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves computes. Cheap to clone.
#[derive(Clone)]
pub struct PageService {
    shared: Arc<Shared>,
}

impl PageService {
    /// A service for the timelines of `manager`.
    pub fn new(manager: TenantManager, auth: Auth, settings: PageServiceSettings) -> Self {
        let places = Places::new(settings.max_connections);
        let sizes = rel_sizes::RelSizes::new();
        Self { shared: Arc::new(Shared { manager, auth, settings, sizes, places, standby_reads: OnceLock::new() }) }
    }

    /// Clients that ask for it also read tenants of which this server is a standby.
    #[must_use]
    pub fn with_standby_reads(self, reads: StandbyReads) -> Self {
        // Only the first ones count.
        let _ = self.shared.standby_reads.set(reads);
        self
    }

    /// Accepts clients until `cancel`, then tells them that the server is shutting down, and waits until they are
    /// gone.
    pub async fn serve(self, listener: TcpListener, cancel: CancellationToken) {
        let tasks = TaskTracker::new();
        loop {
            let accepted = tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, peer)) => {
                    // Without it answers would be delayed to be sent together with later ones.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%peer, "client is gone already: {error}");
                        continue;
                    }
                    let connection = self.clone().serve_one(Box::new(stream), peer, cancel.clone());
                    env::spawn::task("page service connection", tasks.track_future(connection));
                }
                Err(error) => {
                    tracing::warn!("cannot accept a client of the page service: {error}");
                    env::clock::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop(listener);
        tasks.close();
        tasks.wait().await;
    }

    /// Serves one client on any stream, until `cancel`.
    pub async fn serve_one(self, stream: BoxStream, peer: SocketAddr, cancel: CancellationToken) {
        let place = self.shared.places.enter(peer.ip());
        connection::run(&self.shared, stream, &peer.to_string(), &place, &cancel).await;
    }
}
