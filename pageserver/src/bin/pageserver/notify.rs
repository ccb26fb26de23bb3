//! Notifies the service manager of the process's state (`sd_notify`), if it asks for that.

use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, such as `READY=1`. That no service manager is listening is not an error.
pub(crate) fn tell(state: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET") else { return };
    if let Err(error) = send(&socket, state) {
        tracing::warn!("cannot tell the service manager {state:?}: {error}");
    }
}

fn send(socket: &OsStr, state: &str) -> std::io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}
