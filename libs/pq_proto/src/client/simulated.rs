//! The seam below connections: a simulation can answer at addresses of its own. Outside of simulations there are none,
//! and all of this costs one look at an atomic variable for each connection.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};

use crate::stream::BoxStream;

type Dial = Box<dyn Fn() -> io::Result<BoxStream> + Send + Sync>;

static ANY: AtomicBool = AtomicBool::new(false);
static HOSTS: RwLock<Vec<(String, Dial)>> = RwLock::new(Vec::new());

/// Keeps an address answered; dropping it ends that.
#[must_use]
pub struct Listening {
    address: String,
}

/// Answers at `address`, the path of a unix socket, by calling `dial` for each connection.
pub fn listen<F>(address: String, dial: F) -> Listening
where
    F: Fn() -> io::Result<BoxStream> + Send + Sync + 'static,
{
    HOSTS.write().unwrap_or_else(PoisonError::into_inner).push((address.clone(), Box::new(dial)));
    ANY.store(true, Ordering::Release);
    Listening { address }
}

/// A connection to `address`; `None` if that is not simulated.
pub(super) fn connect(address: &str) -> Option<io::Result<BoxStream>> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let hosts = HOSTS.read().unwrap_or_else(PoisonError::into_inner);
    hosts.iter().find(|(known, _)| known == address).map(|(_, dial)| dial())
}

impl Drop for Listening {
    fn drop(&mut self) {
        HOSTS.write().unwrap_or_else(PoisonError::into_inner).retain(|(known, _)| *known != self.address);
    }
}

impl fmt::Debug for Listening {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listening").field("address", &self.address).finish()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn an_address_is_answered_until_nobody_listens() {
        let listening = listen("/simulated/1".to_owned(), || {
            let (near, mut far) = duplex(16);
            tokio::spawn(async move { far.write_all(b"hello").await });
            Ok(Box::new(near))
        });
        assert!(connect("/simulated/2").is_none());
        let mut said = String::new();
        connect("/simulated/1").unwrap().unwrap().read_to_string(&mut said).await.unwrap();
        assert_eq!(said, "hello");
        drop(listening);
        assert!(connect("/simulated/1").is_none());
    }
}
