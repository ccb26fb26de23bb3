//! The journal: WAL as it came in, of all timelines of a server, in one sequence of preallocated files. One sync makes
//! durable what has come in meanwhile for whoever it came, so a commit waits for a sync or two of one file, however
//! many timelines there are. What layers on the local disk have is not needed here any more, and its file is used
//! again.
//!
//! After a crash a timeline's WAL behind its layers is read from here. A batch at the end that was not written whole is
//! as if it was not there, since nobody was told that it was; a damaged one before others is reported, and each
//! timeline's WAL then ends where it has a gap.
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod batch;
mod index;
mod look;
mod recovery;
mod replay;
mod segment;
mod state;
mod writer;

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use camino::Utf8Path;
use errors::StorageError;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedMutexGuard, oneshot, watch};
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;
use utils::shard::TenantShardId;

pub use crate::batch::Id;
use crate::batch::Kind;
pub use crate::look::{Found, look, sealed};
pub use crate::replay::Replay;
use crate::state::{Inner, Pending};
pub use crate::state::{Need, Options, Stats};

/// See the module's documentation. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal {
    inner: Arc<Inner>,
}

/// The part of the journal that is one timeline's. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Lane {
    inner: Arc<Inner>,
    id: Id,
    life: u64,
    synced: watch::Receiver<Lsn>,
    turn: Arc<tokio::sync::Mutex<()>>,
}

impl Journal {
    /// Opens the journal in a directory, which must exist, or begins one there.
    ///
    /// # Errors
    /// Those of the disk. Damage is none: it is logged and counted.
    pub async fn open(dir: &Utf8Path, options: Options) -> Result<Self, StorageError> {
        let (state, next) = recovery::recover(dir).await?;
        let inner = Arc::new(Inner {
            dir: dir.to_owned(),
            options,
            state: Mutex::new(state),
            work: Notify::new(),
            room: Notify::new(),
            grown: Notify::new(),
            cancel: CancellationToken::new(),
            ended: CancellationToken::new(),
            writing: Mutex::new(None),
        });
        let writing = env::spawn::vital("journal", writer::run(Arc::clone(&inner), next));
        *inner.writing.lock() = Some(writing);
        Ok(Self { inner })
    }

    /// The part of a timeline.
    pub fn lane(&self, id: Id) -> Lane {
        let mut state = self.inner.state.lock();
        let end = state.index.last(&id).map_or(Lsn::INVALID, |last| last.end());
        let synced = state.synced.entry(id).or_insert_with(|| watch::Sender::new(end)).subscribe();
        let life = state.lives.get(&id).copied().unwrap_or_default();
        let turn = Arc::clone(state.turns.entry(id).or_default());
        Lane { inner: Arc::clone(&self.inner), id, life, synced, turn }
    }

    /// Makes all WAL of a tenant void, durably: another server may have gone on with it.
    ///
    /// # Errors
    /// [`StorageError::Shutdown`] if the journal ends meanwhile.
    pub async fn forget_tenant(&self, tenant: TenantShardId) -> Result<(), StorageError> {
        for id in self.end_lives(tenant) {
            self.lane(id).void(Lsn(0)).await?;
        }
        Ok(())
    }

    /// Whoever has a lane of the tenant now adds nothing to it any more. Returns the timelines that are known.
    pub fn end_lives(&self, tenant: TenantShardId) -> BTreeSet<Id> {
        let mut state = self.inner.state.lock();
        let known = state.index.ids().chain(state.synced.keys().copied());
        let ids: BTreeSet<Id> = known.filter(|id| id.tenant == tenant).collect();
        ids.iter().for_each(|id| *state.lives.entry(*id).or_default() += 1);
        ids
    }

    /// Gives up what no timeline needs any more. Returns those that keep the oldest file, if all files together are too
    /// large: they are to be flushed.
    ///
    /// # Errors
    /// Those of the disk.
    pub async fn trim(&self, need: impl Fn(&Id) -> Need) -> Result<Vec<Id>, StorageError> {
        recovery::trim(&self.inner, need).await
    }

    /// Waits until all files together are larger than they should be: then it is to be trimmed. Cancellation safe.
    pub async fn crowded(&self) {
        loop {
            let changed = self.inner.grown.notified();
            if self.inner.state.lock().bytes(&self.inner.options) > self.inner.options.bytes {
                return;
            }
            changed.await;
        }
    }

    /// Whether all files together are a quarter larger than they should be: half of what is between that and the limit
    /// for those who wait for room.
    pub fn is_strained(&self) -> bool {
        let options = &self.inner.options;
        self.inner.state.lock().bytes(options) > options.bytes + options.bytes / 4
    }

    /// What it has done.
    pub fn stats(&self) -> Stats {
        let state = self.inner.state.lock();
        Stats { segments: state.segments.len() as u64, ..state.stats }
    }

    /// Writes what is pending, and ends.
    pub async fn shutdown(&self) {
        self.inner.cancel.cancel();
        let writing = self.inner.writing.lock().take();
        if let Some(writing) = writing {
            // It does not panic, or the process has ended.
            let _ = writing.await;
        }
    }
}

impl Lane {
    /// Adds WAL that begins at `start`, and does not wait until it is durable. WAL from there on that was added before
    /// is void.
    pub fn append(&self, start: Lsn, wal: Bytes) {
        {
            let mut state = self.inner.state.lock();
            let life = state.lives.get(&self.id).copied().unwrap_or_default();
            if wal.is_empty() || life != self.life {
                return;
            }
            state.add(Pending { id: self.id, kind: Kind::Wal, lsn: start, wal, done: None });
        }
        self.inner.work.notify_one();
    }

    /// Waits until there is room for more: little is waiting to be written, and all files together are not half as
    /// large again as they should be. Cancellation safe.
    pub async fn room(&self) {
        let options = &self.inner.options;
        loop {
            let changed = self.inner.room.notified();
            let (pending, bytes) = {
                let state = self.inner.state.lock();
                (state.pending_bytes, state.bytes(options))
            };
            if pending < options.pending_bytes && bytes <= options.bytes + options.bytes / 2 {
                return;
            }
            changed.await;
        }
    }

    /// Whether all files together are larger than they should be.
    pub fn is_crowded(&self) -> bool {
        let options = &self.inner.options;
        self.inner.state.lock().bytes(options) > options.bytes
    }

    /// Makes the WAL from `lsn` on void, durably: it will come anew, perhaps from another server.
    ///
    /// # Errors
    /// [`StorageError::Shutdown`] if the journal ends meanwhile, or the timeline is somebody else's by now.
    pub async fn void(&self, lsn: Lsn) -> Result<(), StorageError> {
        let (done, wait) = oneshot::channel();
        let pending = Pending { id: self.id, kind: Kind::Void, lsn, wal: Bytes::new(), done: Some(done) };
        {
            let mut state = self.inner.state.lock();
            if state.lives.get(&self.id).copied().unwrap_or_default() != self.life {
                return Err(StorageError::Shutdown);
            }
            state.add(pending);
        }
        self.inner.work.notify_one();
        self.inner.until(wait).await
    }

    /// Whether there is nothing of the timeline, neither durable nor about to be.
    pub fn is_empty(&self) -> bool {
        let state = self.inner.state.lock();
        state.index.last(&self.id).is_none() && !state.has_more(&self.id)
    }

    /// The LSN up to which all WAL that was added is durable.
    pub fn synced(&self) -> Lsn {
        *self.synced.borrow()
    }

    /// Watches [`Lane::synced`].
    pub fn watch(&self) -> watch::Receiver<Lsn> {
        self.synced.clone()
    }

    /// Waits until nobody else takes in what there is of the timeline; nobody does until this is dropped.
    pub async fn turn(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// The durable WAL from the byte at `from` on.
    pub fn replay(&self, from: Lsn) -> Replay {
        Replay::new(self.inner.dir.clone(), self.inner.state.lock().index.from(&self.id, from))
    }
}
