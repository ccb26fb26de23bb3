//! One Postgres address for all branches: a client names a branch, the branch's compute is woken if it sleeps, and the
//! connection is passed on to it. A compute that nobody is connected to goes back to sleep.
//!
//! What a client wants is in its startup packet ([`wanted`]). Everything after that packet passes through unread, but
//! for the one message that names the key for cancel requests ([`greeting`]): passwords, SCRAM included, are between
//! client and compute.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod address;
mod cancel;
mod fleet;
mod greeting;
mod hello;
mod places;
mod refusal;
mod relay;
mod session;
mod settings;
mod shared;
mod wanted;

use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

pub use address::Address;
pub use fleet::{Fleet, Place, Refused};
pub use settings::Settings;
use shared::{Open, Shared};

/// Pause after an error of `accept`, which comes from a lack of resources.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A gateway to the computes of `F`.
pub struct Gateway<F>(Arc<Shared<F>>);

impl<F: Fleet> Gateway<F> {
    /// A gateway that has not begun to listen. Computes that an earlier one has woken are known to it.
    pub fn new(fleet: F, settings: Settings) -> Self {
        Self(Arc::new(Shared::new(fleet, settings)))
    }

    /// Serves clients until `stop`. Their connections end with the process, and computes stay as they are.
    pub async fn run(self, listener: TcpListener, stop: CancellationToken) {
        let idle = env::spawn::task("computes that nobody uses", let_sleep(Arc::clone(&self.0), stop.clone()));
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                () = stop.cancelled() => break,
            };
            match accepted {
                Ok((stream, _)) => self.accept(stream),
                Err(error) => {
                    tracing::warn!("cannot accept connections: {error}");
                    env::clock::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        // It may be putting a compute to sleep.
        let _ = idle.await;
    }

    fn accept(&self, stream: TcpStream) {
        let open = Open::new(&self.0);
        drop(env::spawn::task("a client of the gateway", async move { session::serve(open.shared(), stream).await }));
    }
}

async fn let_sleep<F: Fleet>(shared: Arc<Shared<F>>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = env::clock::sleep(shared.places.round()) => shared.places.let_sleep().await,
            () = stop.cancelled() => return,
        }
    }
}
