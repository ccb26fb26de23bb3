//! The local side of the file system: names, and the blocks that are present here.
//!
//! Real files and directories mirror the data directory. A file of the manifest gets a real file when it is first
//! written: sparse, full size, and [`mark`]ed with its number and limit. A block is remote if it lies below the limit
//! and is a hole; so presence is a property of the data itself, and there is no second record to keep in sync.
//!
//! * [`tree`]: the names. [`load`]: rebuilding them at start. [`names`]: changing them.
//! * [`file`], [`bitmap`], [`mark`]: the state of a file. [`data`]: changing its contents.
//! * [`removed`]: the log of the manifest's files that were removed.
//!
//! Lock order: the tree, a file's state, the log.

pub(crate) mod attr;
mod bitmap;
mod data;
pub(crate) mod file;
mod load;
mod mark;
mod names;
pub(crate) mod node_id;
mod removed;
#[cfg(test)]
mod tests;
pub(crate) mod tree;

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;

use attr::{Attr, Owner};
pub(crate) use data::{Fetched, blocks};
use file::{FileNode, State};
pub(crate) use load::check_attributes;
use mark::Mark;
pub(crate) use names::Make;
use removed::Removed;
use tree::{NodeId, ROOT, Tree};

use crate::BLOCK;

/// Fetched blocks leave this much of the disk to writes, but no more than this share of it.
const RESERVE_MAX: u64 = 256 << 20;
const RESERVE_SHARE: u64 = 20;

pub(crate) struct Overlay {
    upper: PathBuf,
    staging: PathBuf,
    orphans: PathBuf,
    tree: RwLock<Tree>,
    removed: Mutex<Removed>,
    /// Owner of files that are only in the manifest.
    owner: Owner,
    handles: AtomicUsize,
    handles_max: usize,
}

/// The outcome of a change, which may first need blocks that it overwrites only in part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Done,
    /// These must be fetched first; then the change must be repeated.
    Needs(Vec<u32>),
}

impl Overlay {
    /// The file with number `id`, whether it has a name or not.
    pub(crate) fn file(&self, id: NodeId) -> io::Result<Arc<FileNode>> {
        let tree = self.tree.read();
        tree.file(id).cloned().ok_or_else(|| missing(&tree, id))
    }

    /// Attributes of node `id`.
    pub(crate) fn attr(&self, id: NodeId) -> io::Result<Attr> {
        let tree = self.tree.read();
        self.attr_of(&tree, id)
    }

    /// Statistics of the file system that holds the real files.
    pub(crate) fn stat_fs(&self) -> Result<rustix::fs::StatVfs, Errno> {
        rustix::fs::statvfs(&self.upper)
    }

    /// Whether there is space beyond what is reserved for Postgres's own writes.
    pub(crate) fn has_room_to_keep(&self) -> bool {
        let Ok(stat) = self.stat_fs() else { return true };
        let reserve = RESERVE_MAX.min(stat.f_blocks * stat.f_frsize / RESERVE_SHARE);
        stat.f_bavail * stat.f_frsize > reserve
    }

    fn attr_of(&self, tree: &Tree, id: NodeId) -> io::Result<Attr> {
        if let Some(file) = tree.file(id) {
            let state = file.state.lock();
            if !state.exists {
                return Ok(Attr::lazy(id, u64::from(state.limit) * BLOCK as u64, &self.owner));
            }
        }
        Ok(Attr::of(id, &self.location(tree, id)?.symlink_metadata()?))
    }

    /// Where the real file or directory of node `id` is, or would be.
    fn location(&self, tree: &Tree, id: NodeId) -> io::Result<PathBuf> {
        match tree.path(id) {
            Some(path) if id != ROOT => Ok(self.upper.join(path)),
            Some(_) => Ok(self.upper.clone()),
            None if tree.file(id).is_some() => Ok(self.orphan(id)),
            None => Err(Errno::NOENT.into()),
        }
    }

    fn orphan(&self, id: NodeId) -> PathBuf {
        self.orphans.join(format!("{id:x}"))
    }

    /// Calls `act` with the file's state, with the set of present blocks known and the real file open if it exists.
    /// With `make`, the real file is created if necessary.
    pub(crate) fn with_state<R>(
        &self,
        file: &FileNode,
        make: bool,
        act: impl FnOnce(&mut State) -> io::Result<R>,
    ) -> io::Result<R> {
        {
            let mut state = file.state.lock();
            let ready = if state.exists { state.handle.is_some() && state.present.is_some() } else { !make };
            if ready {
                return act(&mut state);
            }
        }
        let tree = self.tree.read();
        let mut state = file.state.lock();
        if make && !state.exists {
            self.make_real(&tree, file, &mut state)?;
        }
        self.open(&tree, file, &mut state)?;
        drop(tree);
        act(&mut state)
    }

    fn open(&self, tree: &Tree, file: &FileNode, state: &mut State) -> io::Result<()> {
        if state.exists && state.handle.is_none() {
            let path = self.location(tree, file.id)?;
            let handle = File::options().read(true).write(true).open(path)?;
            self.keep(tree, state, Arc::new(handle));
        }
        if let (Some(handle), None) = (&state.handle, &state.present) {
            state.present = Some(mark::present(handle, state.limit)?);
        }
        Ok(())
    }

    /// Creates the sparse file that stands for one of the manifest. It appears under its name already marked.
    fn make_real(&self, tree: &Tree, file: &FileNode, state: &mut State) -> io::Result<()> {
        let aside = self.staging.join(format!("{:x}", file.id));
        let handle = attr::private_file().create(true).truncate(true).open(&aside)?;
        handle.set_len(u64::from(state.limit) * BLOCK as u64)?;
        mark::write(&handle, Mark { id: file.id, limit: state.limit })?;
        std::fs::rename(&aside, self.location(tree, file.id)?)?;
        state.exists = true;
        state.unsynced = true;
        state.unsynced_name = true;
        self.keep(tree, state, Arc::new(handle));
        Ok(())
    }

    fn keep(&self, tree: &Tree, state: &mut State, handle: Arc<File>) {
        state.handle = Some(handle);
        if self.handles.fetch_add(1, Ordering::Relaxed) >= self.handles_max {
            self.close_idle(tree);
        }
    }

    /// Closes real files that nobody is using. Those whose state is locked, the caller's among them, stay open.
    fn close_idle(&self, tree: &Tree) {
        let mut open = 0;
        for file in tree.files() {
            let Some(mut state) = file.state.try_lock() else { continue };
            if state.handle.as_ref().is_some_and(|handle| Arc::strong_count(handle) == 1) {
                state.handle = None;
            }
            open += usize::from(state.handle.is_some());
        }
        self.handles.store(open + 1, Ordering::Relaxed);
    }
}

fn missing(tree: &Tree, id: NodeId) -> io::Error {
    let error = if tree.children(id).is_some() { Errno::ISDIR } else { Errno::NOENT };
    error.into()
}
