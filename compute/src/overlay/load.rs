//! Builds the tree: from the real files, and from the manifest for segments without a real file.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{DirEntry, File, Metadata};
use std::io;
use std::os::unix::fs::{DirEntryExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit};

use crate::layout::Layout;
use crate::overlay::Overlay;
use crate::overlay::attr::Owner;
use crate::overlay::file::{FileNode, Origin};
use crate::overlay::mark::{self, Mark};
use crate::overlay::removed::Removed;
use crate::overlay::tree::{Kind, NodeId, ROOT, Tree, inode_id, lazy_id};
use crate::private::{self, Trust};
use crate::source::{RelationFile, directory};
use crate::{BLOCK, SEGMENT_BLOCKS, manifest};

/// A segment of the manifest that may have no real file.
struct Segment {
    path: String,
    id: NodeId,
    origin: Origin,
    blocks: u32,
}

/// State of a walk over the real files.
struct Loader<'a> {
    tree: Tree,
    segments: &'a [Segment],
    trust: Trust,
    seen: HashSet<NodeId>,
}

impl Overlay {
    /// Opens the overlay at `layout`. With `resume`, the kernel still knows files by the numbers that a former daemon
    /// gave out; otherwise files without a name are deleted.
    pub(crate) fn open_at(layout: &Layout, resume: bool) -> io::Result<Self> {
        let metadata = std::fs::metadata(layout.manifest())?;
        let segments = segments(&manifest::read(&layout.manifest())?);
        let removed = Removed::open(&layout.removed())?;
        empty_directory(&layout.staging())?;
        if resume {
            private::make_dirs(&layout.orphans())?;
        } else {
            empty_directory(&layout.orphans())?;
        }
        let mut loader = Loader { tree: Tree::new(), segments: &segments, trust: Trust::me(), seen: HashSet::new() };
        loader.walk(&layout.upper(), Some(ROOT))?;
        loader.walk(&layout.orphans(), None)?;
        loader.add_unwritten(&removed, resume);
        Ok(Self {
            upper: layout.upper(),
            staging: layout.staging(),
            orphans: layout.orphans(),
            tree: RwLock::new(loader.tree),
            removed: Mutex::new(removed),
            owner: Owner {
                uid: metadata.uid(),
                gid: metadata.gid(),
                time: (metadata.mtime(), u32::try_from(metadata.mtime_nsec()).unwrap_or(0)),
            },
            handles: AtomicUsize::new(0),
            handles_max: handles_max(),
        })
    }
}

/// Half of the limit on open files, after raising it to the maximum.
fn handles_max() -> usize {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let wanted = Rlimit { current: limit.maximum, maximum: limit.maximum };
    let granted = if rustix::process::setrlimit(Resource::Nofile, wanted).is_ok() { wanted } else { limit };
    usize::try_from(granted.current.unwrap_or(1 << 16) / 2).unwrap_or(512).min(1 << 16)
}

fn segments(files: &[RelationFile]) -> Vec<Segment> {
    let cut = |file: &RelationFile| -> Vec<(String, Origin, u32)> {
        let starts = (0..file.blocks.max(1)).step_by(SEGMENT_BLOCKS as usize).zip(0..);
        let segment = |(first, index)| {
            let path = directory::segment_path(&file.path, index);
            (path, Origin { rel: file.rel, first }, (file.blocks - first).min(SEGMENT_BLOCKS))
        };
        starts.map(segment).collect()
    };
    let numbered = files.iter().flat_map(cut).zip(0..);
    numbered.map(|((path, origin, blocks), index)| Segment { path, id: lazy_id(index), origin, blocks }).collect()
}

fn empty_directory(dir: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    private::make_dir(dir)
}

impl Loader<'_> {
    /// Adds the entries of `dir` as children of `parent`, or as files without a name if there is no parent.
    fn walk(&mut self, dir: &Path, parent: Option<NodeId>) -> io::Result<()> {
        self.believe(dir, &std::fs::symlink_metadata(dir)?)?;
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            if kind.is_file() {
                let (id, node) = self.file(&entry)?;
                if self.tree.kind(id).is_some() {
                    // The second name of a file whose replacement was interrupted.
                    std::fs::remove_file(entry.path())?;
                    continue;
                }
                self.tree.insert(parent, &name, id, Kind::File(node));
                continue;
            }
            let id = inode_id(entry.ino());
            let dirent_type = entry.metadata()?.mode() >> 12;
            if kind.is_dir() {
                self.tree.insert(parent, &name, id, Kind::Dir(Default::default()));
                self.walk(&entry.path(), Some(id))?;
            } else {
                self.tree.insert(parent, &name, id, Kind::Other(dirent_type));
            }
        }
        Ok(())
    }

    fn file(&mut self, entry: &DirEntry) -> io::Result<(NodeId, Arc<FileNode>)> {
        let id = inode_id(entry.ino());
        let handle = match File::open(entry.path()) {
            Ok(handle) => handle,
            // Postgres makes its own files readable; an unreadable file is not from the manifest.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                self.believe(&entry.path(), &entry.metadata()?)?;
                return Ok((id, FileNode::local(id, None)));
            }
            Err(error) => return Err(error),
        };
        self.believe(&entry.path(), &handle.metadata()?)?;
        let Some(mark) = mark::read(&handle)? else { return Ok((id, FileNode::local(id, None))) };
        let limit = clamp(&handle, mark)?;
        let index = mark.id ^ lazy_id(0);
        let segment = usize::try_from(index).ok().and_then(|index| self.segments.get(index));
        let Some(segment) = segment else {
            let text = format!("{}: is of another manifest", entry.path().display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        };
        self.seen.insert(mark.id);
        Ok((mark.id, FileNode::lazy(mark.id, segment.origin, limit, true)))
    }

    /// Refuses files that another user put here. Their permissions are Postgres's business.
    fn believe(&self, path: &Path, metadata: &Metadata) -> io::Result<()> {
        if self.trust.has(metadata.uid()) {
            return Ok(());
        }
        let text = format!("{} belongs to user {}: nothing there is believed", path.display(), metadata.uid());
        Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
    }

    /// Adds the segments that have no real file. When resuming, removed ones too: they may still be open.
    fn add_unwritten(&mut self, removed: &Removed, resume: bool) {
        for segment in self.segments {
            if self.seen.contains(&segment.id) {
                continue;
            }
            let node = FileNode::lazy(segment.id, segment.origin, segment.blocks, false);
            if removed.contains(segment.id) {
                if resume {
                    self.tree.insert(None, OsStr::new(""), segment.id, Kind::File(node));
                }
                continue;
            }
            let (dir, name) = segment.path.rsplit_once('/').unwrap_or(("", &segment.path));
            let Some(parent) = self.directory(dir) else { continue };
            if self.tree.child(parent, OsStr::new(name)).is_none() {
                self.tree.insert(Some(parent), OsStr::new(name), segment.id, Kind::File(node));
            }
        }
    }

    fn directory(&self, path: &str) -> Option<NodeId> {
        let mut at = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            at = self.tree.child(at, OsStr::new(name))?;
        }
        self.tree.children(at).map(|_| at)
    }
}

/// The limit of a marked file. A truncation cuts the file first and lowers the mark second; if only the first
/// happened, the second is applied here, since the file may grow again.
fn clamp(handle: &File, mark: Mark) -> io::Result<u32> {
    let blocks = handle.metadata()?.len() / BLOCK as u64;
    match u32::try_from(blocks) {
        Ok(blocks) if blocks < mark.limit => {
            mark::write(handle, Mark { limit: blocks, ..mark })?;
            Ok(blocks)
        }
        _ => Ok(mark.limit),
    }
}

/// Whether files below `dir` can be marked; the error says what is missing.
pub(crate) fn check_attributes(dir: &Path) -> io::Result<()> {
    match rustix::fs::getxattr(dir, "user.compute.lazy", &mut [0_u8; 16]) {
        Err(Errno::NOTSUP) => {
            let text = format!("{}: the file system has no extended attributes of users", dir.display());
            Err(io::Error::new(io::ErrorKind::Unsupported, text))
        }
        _ => Ok(()),
    }
}
