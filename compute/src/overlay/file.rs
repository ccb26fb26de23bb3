//! A regular file: which of its blocks are local, in flight, or only at the source.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::overlay::bitmap::Bitmap;
use crate::overlay::node_id::NodeId;
use crate::readahead::Scan;
use crate::source::RelFork;

/// The position of a segment at the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin {
    pub(crate) rel: RelFork,
    /// Block of the fork at which the segment begins.
    pub(crate) first: u32,
}

pub(crate) struct FileNode {
    pub(crate) id: NodeId,
    /// `None`: Postgres created it; all of it is in the overlay.
    pub(crate) origin: Option<Origin>,
    pub(crate) state: Mutex<State>,
}

/// One lock protects all of it, so that a fetched block never replaces a written one.
#[derive(Default)]
pub(crate) struct State {
    /// Whether a real file stands for this one.
    pub(crate) exists: bool,
    /// That file, while it is open.
    pub(crate) handle: Option<Arc<File>>,
    /// Blocks at or above it are in the overlay, holes being zeros. A block below it is if `present` contains it.
    pub(crate) limit: u32,
    /// `None`: not known yet.
    pub(crate) present: Option<Bitmap>,
    /// Blocks being fetched, or fetched and not in the overlay yet, by first block.
    pub(crate) flights: BTreeMap<u32, Flight>,
    pub(crate) scan: Scan,
    /// Written since the last sync.
    pub(crate) unsynced: bool,
    /// Its name was created since the last sync.
    pub(crate) unsynced_name: bool,
}

/// The result of a fetch; `None` while it is in flight.
pub(crate) type Outcome = Option<Result<Bytes, FetchFailed>>;

/// The source has refused; the log says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FetchFailed;

pub(crate) struct Flight {
    pub(crate) until: u32,
    pub(crate) outcome: watch::Receiver<Outcome>,
}

impl FileNode {
    /// A file created by Postgres.
    pub(crate) fn local(id: NodeId, handle: Option<Arc<File>>) -> Arc<Self> {
        let state = State { exists: true, handle, unsynced: true, unsynced_name: true, ..State::default() };
        Arc::new(Self { id, origin: None, state: Mutex::new(state) })
    }

    /// A file of the manifest, of which the first `limit` blocks may be remote.
    pub(crate) fn lazy(id: NodeId, origin: Origin, limit: u32, exists: bool) -> Arc<Self> {
        let state = State {
            exists,
            limit,
            present: (!exists).then(Bitmap::default),
            unsynced: exists,
            unsynced_name: exists,
            ..State::default()
        };
        Arc::new(Self { id, origin: Some(origin), state: Mutex::new(state) })
    }
}

impl State {
    /// Whether block `block` must come from the source. The set of present blocks must be known.
    pub(crate) fn is_remote(&self, block: u32) -> bool {
        block < self.limit && !self.present.as_ref().is_some_and(|present| present.contains(block))
    }

    pub(crate) fn any_remote(&self, blocks: Range<u32>) -> bool {
        (blocks.start..blocks.end.min(self.limit)).any(|block| self.is_remote(block))
    }

    /// Records that `blocks` are in the overlay now.
    pub(crate) fn arrived(&mut self, blocks: Range<u32>) {
        let limit = self.limit;
        assert!(self.exists && self.handle.is_some(), "blocks arrive for which there is no file");
        let present = self.present.get_or_insert_default();
        (blocks.start..blocks.end.min(limit)).for_each(|block| present.insert(block));
        debug_assert!(!self.any_remote(blocks), "what has arrived is still asked of the source");
    }

    /// The flight that covers `block`.
    pub(crate) fn flight(&self, block: u32) -> Option<&Flight> {
        let (_, flight) = self.flights.range(..=block).next_back()?;
        (block < flight.until).then_some(flight)
    }
}
