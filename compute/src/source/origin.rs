//! The file `origin.json`: where the blocks of a compute come from.
//!
//! It belongs to the Postgres user, who needs no more of `compute.json` than this and must not be able to change the
//! rest. A running file system watches it for changes: this is how a compute moves from one pageserver to another.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::pagestream::{PagestreamSource, TimelineAt};
use super::servers::Servers;
use crate::layout::Layout;
use crate::private::Trust;

/// Polling interval for the file.
const LOOK: Duration = Duration::from_millis(500);

/// Where blocks come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Page service, as a libpq connection string, or several, separated by commas.
    pub page_service: String,
    /// Token for the page service.
    pub token: Option<String>,
    /// The timeline and LSN.
    pub at: TimelineAt,
}

impl Origin {
    /// Reads that of the compute at `layout`.
    pub fn of(layout: &Layout) -> io::Result<Self> {
        Self::load(&layout.origin(), Trust::me())
    }

    pub(crate) fn load(path: &Path, trust: Trust) -> io::Result<Self> {
        // The parser's message may contain parts of a token.
        serde_json::from_slice(&trust.read(path)?).map_err(|error| {
            let text = format!("{}, line {}: this is no origin of a compute", path.display(), error.line());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }

    /// Writes this to the file `path`, durably.
    pub(crate) fn store(&self, path: &Path, give: impl FnOnce(&File) -> io::Result<()>) -> io::Result<()> {
        let bytes = serde_json::to_vec_pretty(self).map_err(io::Error::other)?;
        Trust::me().replace(path, &bytes, give)
    }

    /// The source of the blocks. Must be called in a runtime.
    pub fn source(self) -> io::Result<PagestreamSource> {
        Ok(PagestreamSource::new(self.servers()?, self.at))
    }

    fn servers(&self) -> io::Result<Servers> {
        let servers = Servers::parse(&self.page_service, self.token.as_deref());
        servers.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))
    }
}

/// Redirects `source`, that of the compute at `layout`, whenever its file changes. Never returns.
pub async fn keep_up(layout: Layout, source: PagestreamSource) {
    let path = layout.origin();
    // The file is always replaced as a whole, so its inode identifies the version.
    let which = || std::fs::symlink_metadata(&path).map(|found| (found.ino(), found.mtime(), found.mtime_nsec())).ok();
    let (mut seen, mut known) = (which(), Origin::of(&layout).ok());
    loop {
        env::clock::sleep(LOOK).await;
        let now = which();
        if now == seen || now.is_none() {
            continue;
        }
        seen = now;
        match changed(&layout, known.as_ref()) {
            Ok(None) => {}
            Ok(Some((origin, servers))) => {
                tracing::info!("blocks come from another address of the page service");
                source.move_to(servers);
                known = Some(origin);
            }
            Err(error) => tracing::error!("{}: {error}: blocks come from where they did", path.display()),
        }
    }
}

/// The file's content, if it names another pageserver than `known`.
fn changed(layout: &Layout, known: Option<&Origin>) -> io::Result<Option<(Origin, Servers)>> {
    let origin = Origin::of(layout)?;
    if known == Some(&origin) {
        return Ok(None);
    }
    if known.is_some_and(|known| known.at != origin.at) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "it names another timeline or LSN than before"));
    }
    let servers = origin.servers()?;
    Ok(Some((origin, servers)))
}
