//! Connections to the management interface: accepted up to a limit, with or without TLS, and let go on shutdown.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A client must have sent a request's headers, and done its part of the TLS handshake, within this time.
const OPENING_TIMEOUT: Duration = Duration::from_secs(20);
/// On shutdown, requests in progress have this time.
const CLOSING_TIMEOUT: Duration = Duration::from_secs(3);
/// After an error of the system that is not one connection's, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until `cancel`; then requests in progress may end, and it returns.
pub(crate) async fn serve(
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    router: Router,
    max_connections: usize,
    cancel: CancellationToken,
) {
    let places = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
    let connections = TaskTracker::new();
    while let Some((stream, place)) = accept(&listener, &places, &cancel).await {
        let (tls, router, cancel) = (tls.clone(), router.clone(), cancel.clone());
        let connection = async move {
            let _place = place;
            match tls {
                None => converse(stream, router, cancel).await,
                Some(tls) => match tokio::time::timeout(OPENING_TIMEOUT, tls.accept(stream)).await {
                    Ok(Ok(stream)) => converse(stream, router, cancel).await,
                    Ok(Err(error)) => tracing::debug!("TLS handshake failed: {error}"),
                    Err(_) => tracing::debug!("TLS handshake took too long"),
                },
            }
        };
        env::spawn::task("http connection", connections.track_future(connection));
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

/// The next connection, once there is a place for it; `None` when cancelled.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    cancel: &CancellationToken,
) -> Option<(TcpStream, OwnedSemaphorePermit)> {
    let next = async {
        let place = Arc::clone(places).acquire_owned().await.ok()?;
        loop {
            match listener.accept().await {
                Ok((stream, _)) => return Some((stream, place)),
                Err(error) => {
                    tracing::warn!("cannot accept a connection to the management interface: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        next = next => next,
        () = cancel.cancelled() => None,
    }
}

async fn converse(stream: impl AsyncRead + AsyncWrite + Unpin, router: Router, cancel: CancellationToken) {
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(OPENING_TIMEOUT);
    let mut connection =
        std::pin::pin!(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = cancel.cancelled() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(CLOSING_TIMEOUT, connection).await {
                Ok(result) => result,
                Err(_) => return,
            }
        }
    };
    if let Err(error) = result {
        tracing::debug!("connection to the management interface: {error}");
    }
}
