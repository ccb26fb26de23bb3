//! Connections to the management interface, with or without TLS. They are accepted at once, and closed when another
//! connection needs the place, when the caller loses its permission, and on shutdown.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use axum::response::Response;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::Caller;
use super::audit::Peer;
use crate::places::{Place, Places, Work};

/// Time limit for a client to send the headers of a request, and for the TLS handshake.
const OPENING_TIMEOUT: Duration = Duration::from_secs(20);
/// Time limit for requests in progress on shutdown.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(3);
/// Pause after an accept error that does not concern a single connection, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Paths of health probes.
const PROBES: [&str; 2] = ["/v1/status", "/metrics"];

/// Serves `router` until `cancel`, then returns when requests in progress have ended. At most `limit` requests are
/// served concurrently; further ones wait.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    limit: usize,
    cancel: CancellationToken,
) {
    let places = Places::new(limit);
    let connections = TaskTracker::new();
    while let Some((stream, peer)) = accept(&listener, &cancel).await {
        let connection = Connection { place: places.enter(peer.ip()), peer: Peer(peer), caller: Caller::default() };
        let work = connection.run(stream, tls.clone(), router.clone(), cancel.clone());
        env::spawn::task("http connection", connections.track_future(work));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// Accepts the next connection; `None` when cancelled.
async fn accept(listener: &TcpListener, cancel: &CancellationToken) -> Option<(TcpStream, SocketAddr)> {
    let next = async {
        loop {
            match listener.accept().await {
                Ok(accepted) => return accepted,
                Err(error) => {
                    tracing::warn!("cannot accept a connection to the management interface: {error}");
                    env::clock::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        next = next => Some(next),
        () = cancel.cancelled() => None,
    }
}

/// A connection, and the last caller on it.
struct Connection {
    place: Place,
    peer: Peer,
    caller: Caller,
}

impl Connection {
    async fn run(self, stream: TcpStream, tls: Option<TlsAcceptor>, router: Router, cancel: CancellationToken) {
        let this = Arc::new(self);
        let conversation = async {
            match tls {
                None => Arc::clone(&this).converse(stream, router, cancel).await,
                Some(tls) => match env::clock::timeout(OPENING_TIMEOUT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => Arc::clone(&this).converse(stream, router, cancel).await,
                    Ok(Err(error)) => tracing::debug!("TLS handshake failed: {error}"),
                    Err(_) => tracing::debug!("TLS handshake took too long"),
                },
            }
        };
        tokio::select! {
            () = conversation => {}
            () = this.place.gives_way() => tracing::debug!("an idle connection gives way to another one"),
        }
    }

    async fn converse(
        self: Arc<Self>,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        router: Router,
        cancel: CancellationToken,
    ) {
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(OPENING_TIMEOUT);
        let service = service_fn(|request| Arc::clone(&self).answer(request, router.clone()));
        let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = self.must_end(&cancel) => {
                connection.as_mut().graceful_shutdown();
                match env::clock::timeout(CLOSING_TIMEOUT, connection).await {
                    Ok(result) => result,
                    Err(_) => return,
                }
            }
        };
        if let Err(error) = result {
            tracing::debug!("connection to the management interface: {error}");
        }
    }

    /// Completes when the server shuts down or the caller loses its permission.
    async fn must_end(&self, cancel: &CancellationToken) {
        tokio::select! {
            () = cancel.cancelled() => {}
            () = self.caller.ended() => {}
        }
    }

    async fn answer(self: Arc<Self>, mut request: Request<Incoming>, router: Router) -> Result<Response, Infallible> {
        let work = if PROBES.contains(&request.uri().path()) { Work::Probe } else { Work::Usual };
        let _turn = self.place.begin(work).await;
        request.extensions_mut().insert(self.caller.clone());
        request.extensions_mut().insert(self.peer);
        TowerToHyperService::new(router).call(request).await
    }
}
