//! Cancel requests: each is passed on to the compute whose connection it is about.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use parking_lot::Mutex;
use pq_proto::frontend::CANCEL_CODE;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::address::Address;

/// How long a compute may take to take in a cancel request. It closes the connection then.
const LIMIT: Duration = Duration::from_secs(5);

/// The keys of all sessions, and whose they are.
#[derive(Debug, Default)]
pub(crate) struct CancelKeys(Mutex<HashMap<Bytes, Address>>);

impl CancelKeys {
    /// Knows a session's key for as long as the session lasts.
    pub(crate) fn know(&self, key: Bytes, address: Address) -> Known<'_> {
        self.0.lock().insert(key.clone(), address);
        Known { keys: self, key }
    }

    /// Passes a request on. Nobody is told whether there was such a session, as with Postgres.
    pub(crate) async fn pass_on(&self, key: &Bytes) {
        let Some(address) = self.0.lock().get(key).cloned() else { return };
        let passed = env::clock::timeout(LIMIT, send(&address, key)).await;
        match passed {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::info!("a cancel request did not reach its compute: {error}"),
            Err(_) => tracing::info!("a compute took too long to take in a cancel request"),
        }
    }
}

async fn send(address: &Address, key: &Bytes) -> std::io::Result<()> {
    let mut stream = address.connect().await?;
    let mut packet = BytesMut::new();
    packet.put_u32(u32::try_from(8 + key.len()).unwrap_or(u32::MAX));
    packet.put_i32(CANCEL_CODE);
    packet.put_slice(key);
    stream.write_all(&packet).await?;
    stream.flush().await?;
    // Clients take the end of their connection for the end of the request.
    stream.read(&mut [0]).await.map(drop)
}

/// A key that is known until this is dropped.
#[derive(Debug)]
pub(crate) struct Known<'a> {
    keys: &'a CancelKeys,
    key: Bytes,
}

impl Drop for Known<'_> {
    fn drop(&mut self) {
        self.keys.0.lock().remove(&self.key);
    }
}
