//! The user-space file system: answers the kernel's requests from a volume.
//!
//! We implement the kernel's protocol ourselves; `docs/decisions/0020` explains why. There are no handles: a request
//! names a node, and everything else that the kernel knows is in the tree. So a daemon that is killed can be replaced
//! by another, which takes over the connection and has the kernel resend all unanswered requests.
//!
//! * [`wire`]: encoding of requests and answers. [`init`]: negotiation at the beginning.
//! * [`device`]: the connection. [`serve`]: dispatch of requests.

mod device;
mod init;
mod serve;
pub(crate) mod wire;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::catalog::{Catalog, CatalogFirst};
use crate::fetch::{Policy, Volume};
use crate::layout::Layout;
use crate::overlay::{Overlay, check_attributes};
use crate::source::PageSource;
use device::Device;

/// Threads that receive requests from the kernel. A request that waits for the source does not occupy one.
const THREADS: usize = 16;

/// Serves the compute at `layout` on `connection` until the file system is unmounted. With `resume`, takes over from
/// a daemon that was killed. Must be called within a runtime.
pub async fn serve<S: PageSource>(
    layout: &Layout,
    connection: OwnedFd,
    source: S,
    policy: Policy,
    resume: bool,
) -> io::Result<()> {
    check_attributes(&layout.upper())?;
    let catalog = layout.catalog().exists().then(|| Catalog::open(&layout.catalog())).transpose()?;
    let overlay = Overlay::open_at(layout, resume)?;
    let volume = Volume::new(overlay, CatalogFirst::new(catalog, source), policy);
    let device = Arc::new(Device::new(File::from(connection)));
    let threads: Vec<_> = (0..THREADS)
        .map(|_| {
            let (volume, device) = (Arc::clone(&volume), Arc::clone(&device));
            env::spawn::vital_blocking("file system", move || serve::requests(&volume, &device))
        })
        .collect();
    if resume && let Err(error) = device.ask_for_unanswered() {
        tracing::error!("the kernel does not send again what was not answered: {error}");
        return Err(error);
    }
    for thread in threads {
        thread.await.map_err(io::Error::other)??;
    }
    Ok(())
}
