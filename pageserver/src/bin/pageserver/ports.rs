//! The addresses that the process listens on.

use std::net::SocketAddr;

use anyhow::{Context, bail};
use camino::Utf8Path;
use pageserver::settings::{Port, Settings};
use serde::Serialize;
use tokio::net::TcpListener;
use virtual_file::fs;

/// File with the addresses in use, as JSON. It exists only while the process serves.
const ADDR_FILE: &str = "pageserver.addr";

#[derive(Serialize)]
struct Addresses {
    pid: u32,
    listen_pg_addr: SocketAddr,
    listen_http_addr: SocketAddr,
}

/// Listens on the address in the setting for `port`, if that is safe.
pub(crate) async fn listen(settings: &Settings, port: Port) -> anyhow::Result<TcpListener> {
    let (key, addr) = match port {
        Port::Pg => ("listen_pg_addr", &settings.listen_pg_addr),
        Port::Http => ("listen_http_addr", &settings.listen_http_addr),
    };
    let found = tokio::net::lookup_host(addr).await.with_context(|| format!("{key}: cannot resolve {addr:?}"))?;
    let found: Vec<SocketAddr> = found.collect();
    for addr in &found {
        match settings.check_exposure(port, *addr) {
            Ok(None) => {}
            Ok(Some(danger)) => tracing::warn!("{danger}"),
            Err(reason) => bail!(reason),
        }
    }
    TcpListener::bind(found.as_slice()).await.with_context(|| format!("{key}: cannot listen on {addr}"))
}

/// Writes the addresses to the file.
pub(crate) async fn publish(workdir: &Utf8Path, pg: &TcpListener, http: &TcpListener) -> anyhow::Result<()> {
    let (listen_pg_addr, listen_http_addr) = (pg.local_addr()?, http.local_addr()?);
    let addresses = Addresses { pid: std::process::id(), listen_pg_addr, listen_http_addr };
    virtual_file::write_file_durably(&workdir.join(ADDR_FILE), &serde_json::to_vec_pretty(&addresses)?).await?;
    tracing::info!("page service on {listen_pg_addr}, management interface on {listen_http_addr}");
    Ok(())
}

/// Removes the file.
pub(crate) async fn withdraw(workdir: &Utf8Path) -> anyhow::Result<()> {
    Ok(fs::unlink(&workdir.join(ADDR_FILE)).await?)
}
