//! What a journal knows in memory, and what is told of it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use camino::Utf8PathBuf;
use errors::StorageError;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;

use crate::batch::{Id, Kind};
use crate::index::Index;

/// What the journal may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Bytes of each file, a multiple of 4,096.
    pub segment_bytes: u32,
    /// Bytes of all files above which timelines are to be flushed that need the oldest. Half as much again is the limit
    /// for those who wait for [`Lane::room`](crate::Lane::room).
    pub bytes: u64,
    /// Bytes in memory that wait to be written, above which nobody is to add more.
    pub pending_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, bytes: 1 << 30, pending_bytes: 8 << 20 }
    }
}

/// What of the journal a timeline still needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing: it is gone, or another server's.
    Nothing,
    /// The WAL from this LSN on: layers have what is before.
    From(Lsn),
    /// The WAL from `needed` on; as long as there is room, that from `wanted` on, which is before.
    Rather {
        /// Layers have what is before.
        needed: Lsn,
        /// Others have what is before, if the layers are lost.
        wanted: Lsn,
    },
    /// It is not open: all of it, as long as there is room.
    Unknown,
}

/// Figures, since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pieces of WAL that are durable.
    pub frames: u64,
    /// Syncs that made them so.
    pub syncs: u64,
    /// Files.
    pub segments: u64,
    /// Places that were damaged when it was opened.
    pub damages: u64,
    /// Files that went for want of room, although others lack what layers have of them ([`Need::Rather`]).
    pub gone_early: u64,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) dir: Utf8PathBuf,
    pub(crate) options: Options,
    pub(crate) state: Mutex<State>,
    /// Something is pending.
    pub(crate) work: Notify,
    /// Less is, or files have gone.
    pub(crate) room: Notify,
    /// There is one more file.
    pub(crate) grown: Notify,
    pub(crate) cancel: CancellationToken,
    /// Nothing more is written.
    pub(crate) ended: CancellationToken,
    pub(crate) writing: Mutex<Option<JoinHandle<()>>>,
}

impl Inner {
    /// Waits until what was added is durable.
    pub(crate) async fn until(&self, done: oneshot::Receiver<()>) -> Result<(), StorageError> {
        tokio::select! {
            biased;
            done = done => done.map_err(|_| StorageError::Shutdown),
            () = self.ended.cancelled() => Err(StorageError::Shutdown),
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) pending: VecDeque<Pending>,
    pub(crate) pending_bytes: usize,
    /// Whose frames are being written, and are in the index soon.
    pub(crate) writing: Vec<Id>,
    pub(crate) index: Index,
    pub(crate) segments: VecDeque<Segment>,
    /// Files to be used again.
    pub(crate) spares: Vec<Utf8PathBuf>,
    pub(crate) synced: HashMap<Id, watch::Sender<Lsn>>,
    /// How often a timeline was forgotten: what those add is nothing any more who knew it before.
    pub(crate) lives: HashMap<Id, u64>,
    /// Whoever takes in what there is of a timeline has its turn.
    pub(crate) turns: HashMap<Id, Arc<tokio::sync::Mutex<()>>>,
    pub(crate) stats: Stats,
}

/// A file with its number, and the timelines whose WAL it has.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) number: u64,
    pub(crate) ids: BTreeSet<Id>,
}

/// A frame that is to be written.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) id: Id,
    pub(crate) kind: Kind,
    pub(crate) lsn: Lsn,
    pub(crate) wal: Bytes,
    pub(crate) done: Option<oneshot::Sender<()>>,
}

impl State {
    /// Bytes of all files that are in use.
    pub(crate) fn bytes(&self, options: &Options) -> u64 {
        self.segments.len() as u64 * u64::from(options.segment_bytes)
    }

    /// Whether more of a timeline comes than the index has.
    pub(crate) fn has_more(&self, id: &Id) -> bool {
        self.writing.contains(id) || self.pending.iter().any(|pending| pending.id == *id)
    }

    /// Adds what is to be written.
    pub(crate) fn add(&mut self, pending: Pending) {
        self.pending_bytes += pending.wal.len();
        self.pending.push_back(pending);
    }
}
