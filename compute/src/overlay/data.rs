//! File contents.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::Arc;

use bytes::Bytes;
use rustix::fs::{Advice, FallocateFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::BLOCK;
use crate::overlay::attr::Time;
use crate::overlay::file::{FileNode, State};
use crate::overlay::mark::{self, Mark};
use crate::overlay::tree::NodeId;
use crate::overlay::{Change, Overlay};

/// Blocks that a fetch has returned, starting at this number.
pub(crate) type Fetched = (u32, Bytes);

impl Overlay {
    /// Reads local data; `None` if any of the range is remote.
    pub(crate) fn read_here(&self, file: &FileNode, offset: u64, size: usize) -> io::Result<Option<Vec<u8>>> {
        let handle = self.with_state(file, false, |state| {
            let blocks = blocks(offset, size)?;
            if state.any_remote(blocks) {
                return Ok(None);
            }
            // Without a real file, all blocks below the limit are remote, so a range that is not remote lies beyond
            // the end.
            Ok(Some(state.handle.clone()))
        })?;
        match handle {
            None => Ok(None),
            Some(None) => Ok(Some(Vec::new())),
            Some(Some(handle)) => {
                let data = read(&handle, offset, size)?;
                // The kernel has cached it now; one copy is enough.
                let length = std::num::NonZeroU64::new(size as u64);
                let _ = rustix::fs::fadvise(&*handle, offset, length, Advice::DontNeed);
                Ok(Some(data))
            }
        }
    }

    /// Reads local blocks, and the rest from `fetched`, which must contain everything that was remote.
    pub(crate) fn assemble(
        &self,
        file: &FileNode,
        offset: u64,
        size: usize,
        fetched: &[Fetched],
    ) -> io::Result<Vec<u8>> {
        self.with_state(file, false, |state| {
            let length = length(state)?;
            let size = usize::try_from(length.saturating_sub(offset)).unwrap_or(usize::MAX).min(size);
            let blocks = blocks(offset, size)?;
            let mut out = match &state.handle {
                Some(handle) if !blocks.clone().all(|block| state.is_remote(block)) => read(handle, offset, size)?,
                // None of it is local: reading holes would cost as much as the rest.
                _ => Vec::new(),
            };
            out.resize(size, 0);
            for block in blocks.filter(|block| state.is_remote(*block)) {
                let image = find(fetched, block).ok_or_else(|| io::Error::other("a block was not fetched"))?;
                copy_block(&mut out, offset, block, image);
            }
            Ok(out)
        })
    }

    /// Writes, unless partially overwritten blocks must be fetched first.
    pub(crate) fn write(&self, file: &FileNode, offset: u64, data: &[u8]) -> io::Result<Change> {
        self.with_state(file, true, |state| {
            let needed = partial(state, offset, offset + data.len() as u64);
            if !needed.is_empty() {
                return Ok(Change::Needs(needed));
            }
            let handle = state.handle.clone().ok_or(Errno::IO)?;
            let (written, outcome) = write(&handle, offset, data);
            state.unsynced = true;
            let end = offset + written as u64;
            let whole = if written == data.len() { end.div_ceil(BLOCK as u64) } else { end / BLOCK as u64 };
            state.arrived(block(offset)?..u32::try_from(whole).map_err(|_| Errno::FBIG)?);
            outcome.map(|()| Change::Done)
        })
    }

    /// Stores fetched blocks, except those that were written meanwhile; ends the fetch.
    pub(crate) fn take_in(&self, file: &FileNode, first: u32, data: &Bytes) -> io::Result<()> {
        let taken = self.with_state(file, true, |state| {
            let handle = state.handle.clone().ok_or(Errno::IO)?;
            let until = first + (data.len() / BLOCK) as u32;
            let mut at = first;
            while at < until {
                let end = (at..until).find(|block| !state.is_remote(*block)).unwrap_or(until);
                if at < end {
                    let slice = &data[(at - first) as usize * BLOCK..(end - first) as usize * BLOCK];
                    let (written, outcome) = write(&handle, u64::from(at) * BLOCK as u64, slice);
                    state.arrived(at..at + (written / BLOCK) as u32);
                    outcome?;
                }
                at = end + 1;
            }
            Ok(())
        });
        self.let_go(file, first);
        taken
    }

    /// Ends a fetch without storing its blocks.
    pub(crate) fn let_go(&self, file: &FileNode, first: u32) {
        file.state.lock().flights.remove(&first);
    }

    /// Truncates or extends the file to `size` bytes.
    pub(crate) fn truncate(&self, file: &FileNode, size: u64) -> io::Result<Change> {
        self.with_state(file, true, |state| {
            if !size.is_multiple_of(BLOCK as u64) && state.is_remote(block(size)?) {
                return Ok(Change::Needs(vec![block(size)?]));
            }
            let handle = state.handle.clone().ok_or(Errno::IO)?;
            handle.set_len(size)?;
            state.unsynced = true;
            let limit = block(size).unwrap_or(u32::MAX);
            if limit < state.limit {
                // Blocks below it may be remote; the limit must never grow again, or the truncated data would come
                // back.
                state.limit = limit;
                mark::write(&handle, Mark { id: file.id, limit })?;
            }
            Ok(Change::Done)
        })
    }

    /// Reserves space. Below the limit there is nothing to reserve: a reserved block would still be a hole.
    pub(crate) fn allocate(&self, file: &FileNode, keep_size: bool, offset: u64, length: u64) -> io::Result<()> {
        self.with_state(file, true, |state| {
            let handle = state.handle.clone().ok_or(Errno::IO)?;
            let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
            let from = offset.max(u64::from(state.limit) * BLOCK as u64);
            if from < end {
                let flags = if keep_size { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() };
                rustix::fs::fallocate(&*handle, flags, from, end - from)?;
                state.unsynced = true;
            }
            Ok(())
        })
    }

    /// Makes the file's writes, its name, and earlier removals durable.
    pub(crate) fn sync(&self, file: &FileNode) -> io::Result<()> {
        let (handle, name) = self.with_state(file, false, |state| {
            let dirty = std::mem::take(&mut state.unsynced);
            Ok((state.handle.clone().filter(|_| dirty), std::mem::take(&mut state.unsynced_name)))
        })?;
        let synced = handle.map_or(Ok(()), |handle| handle.sync_all());
        let synced = synced.and_then(|()| if name { self.sync_parent(file.id) } else { Ok(()) });
        if synced.is_err() {
            let mut state = file.state.lock();
            state.unsynced = true;
            state.unsynced_name = true;
        }
        synced?;
        self.removed.lock().sync()
    }

    fn sync_parent(&self, id: NodeId) -> io::Result<()> {
        let parent = self.tree.read().parent(id);
        parent.map_or(Ok(()), |parent| self.sync_dir(parent))
    }

    /// Makes the names in a directory durable.
    pub(crate) fn sync_dir(&self, dir: NodeId) -> io::Result<()> {
        let path = {
            let tree = self.tree.read();
            self.location(&tree, dir)?
        };
        self.removed.lock().sync()?;
        File::open(path)?.sync_all()
    }

    /// Changes the permissions of a node.
    pub(crate) fn set_mode(&self, id: NodeId, mode: u32) -> io::Result<()> {
        if let Ok(file) = self.file(id) {
            self.with_state(&file, true, |_| Ok(()))?;
        }
        let tree = self.tree.read();
        std::fs::set_permissions(self.location(&tree, id)?, std::fs::Permissions::from_mode(mode & 0o7777))
    }

    /// Changes times. A file that was never written keeps its own.
    pub(crate) fn set_times(&self, id: NodeId, atime: Option<Time>, mtime: Option<Time>) -> io::Result<()> {
        let tree = self.tree.read();
        if tree.file(id).is_some_and(|file| !file.state.lock().exists) {
            return Ok(());
        }
        let path = self.location(&tree, id)?;
        let spec = |time: Option<Time>| match time {
            Some((seconds, nanoseconds)) => Timespec { tv_sec: seconds, tv_nsec: nanoseconds.into() },
            None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        };
        let times = Timestamps { last_access: spec(atime), last_modification: spec(mtime) };
        Ok(rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?)
    }
}

fn block(offset: u64) -> io::Result<u32> {
    u32::try_from(offset / BLOCK as u64).map_err(|_| Errno::FBIG.into())
}

/// The blocks touched by `size` bytes at `offset`.
pub(crate) fn blocks(offset: u64, size: usize) -> io::Result<Range<u32>> {
    let end = offset.checked_add(size as u64).ok_or(Errno::FBIG)?.div_ceil(BLOCK as u64);
    Ok(block(offset)?..u32::try_from(end).map_err(|_| Errno::FBIG)?)
}

fn length(state: &State) -> io::Result<u64> {
    match &state.handle {
        Some(handle) => Ok(handle.metadata()?.len()),
        None => Ok(u64::from(state.limit) * BLOCK as u64),
    }
}

/// Remote blocks that the byte range `from..to` covers only in part.
fn partial(state: &State, from: u64, to: u64) -> Vec<u32> {
    let cut = [from, to].into_iter().filter(|at| !at.is_multiple_of(BLOCK as u64));
    let mut needed: Vec<u32> = cut.filter_map(|at| block(at).ok()).filter(|at| state.is_remote(*at)).collect();
    needed.dedup();
    needed
}

fn find(fetched: &[Fetched], block: u32) -> Option<&[u8]> {
    fetched.iter().find_map(|(first, data)| {
        let at = block.checked_sub(*first)? as usize * BLOCK;
        data.get(at..at + BLOCK)
    })
}

/// Copies the part of `image` that lies within `out`, whose first byte is at `offset` of the file.
fn copy_block(out: &mut [u8], offset: u64, block: u32, image: &[u8]) {
    let begin = u64::from(block) * BLOCK as u64;
    let from = begin.max(offset);
    let to = (begin + BLOCK as u64).min(offset + out.len() as u64);
    if from < to {
        let source = &image[(from - begin) as usize..(to - begin) as usize];
        out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
    }
}

/// Reads up to `size` bytes, fewer at the end of the file.
fn read(handle: &Arc<File>, offset: u64, size: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match handle.read_at(&mut out[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    out.truncate(filled);
    Ok(out)
}

/// Writes `data`; returns how much was written, even on failure.
fn write(handle: &File, offset: u64, data: &[u8]) -> (usize, io::Result<()>) {
    let mut written = 0;
    while written < data.len() {
        match handle.write_at(&data[written..], offset + written as u64) {
            Ok(0) => return (written, Err(Errno::IO.into())),
            Ok(n) => written += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Err(error)),
        }
    }
    (written, Ok(()))
}
