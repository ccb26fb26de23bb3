//! Changes to names.
//!
//! After a restart of the daemon the kernel resends unanswered requests, which may already have been carried out:
//! such requests are `resent`, and finding their effect in place counts as success.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::sync::Arc;

use rustix::fs::{CWD, FileType, Mode};
use rustix::io::Errno;

use crate::overlay::Overlay;
use crate::overlay::attr::Attr;
use crate::overlay::file::FileNode;
use crate::overlay::tree::{Children, Kind, NodeId, Tree, inode_id};

/// What to create.
pub(crate) enum Make<'a> {
    File,
    Dir,
    Symlink(&'a OsStr),
    /// Sockets and pipes, with the type bits of the mode.
    Special(u32),
}

/// An entry of a listing.
pub(crate) struct Listed {
    pub(crate) id: NodeId,
    pub(crate) kind: u32,
    pub(crate) name: OsString,
}

impl Overlay {
    /// `None` if there is no such name.
    pub(crate) fn lookup(&self, parent: NodeId, name: &OsStr) -> io::Result<Option<Attr>> {
        let tree = self.tree.read();
        tree.children(parent).ok_or(Errno::NOTDIR)?;
        tree.child(parent, name).map(|id| self.attr_of(&tree, id)).transpose()
    }

    /// Up to `count` entries of directory `dir`, starting after node `after`.
    pub(crate) fn list(&self, dir: NodeId, after: NodeId, count: usize) -> io::Result<Vec<Listed>> {
        let tree = self.tree.read();
        let children = tree.children(dir).ok_or(Errno::NOTDIR)?;
        let listed = |(id, name): (NodeId, &OsStr)| Listed {
            id,
            kind: tree.kind(id).map_or(0, Kind::dirent_type),
            name: name.to_owned(),
        };
        Ok(children.after(after).take(count).map(listed).collect())
    }

    /// The directory that `dir` is in.
    pub(crate) fn parent(&self, dir: NodeId) -> Option<NodeId> {
        self.tree.read().parent(dir)
    }

    /// Creates `name` in `parent`. If it exists, this is an error unless `may_exist`: on request, or after a resend.
    pub(crate) fn make(
        &self,
        parent: NodeId,
        name: &OsStr,
        mode: u32,
        what: &Make<'_>,
        may_exist: bool,
    ) -> io::Result<Attr> {
        let mut tree = self.tree.write();
        tree.children(parent).ok_or(Errno::NOENT)?;
        if let Some(id) = tree.child(parent, name) {
            return if may_exist { self.attr_of(&tree, id) } else { Err(Errno::EXIST.into()) };
        }
        let path = self.location(&tree, parent)?.join(name);
        let mut handle = None;
        match what {
            Make::File => {
                let mut options = std::fs::OpenOptions::new();
                handle = Some(options.read(true).write(true).create_new(true).mode(mode & 0o7777).open(&path)?);
            }
            Make::Dir => std::fs::DirBuilder::new().mode(mode & 0o7777).create(&path)?,
            Make::Symlink(target) => std::os::unix::fs::symlink(target, &path)?,
            Make::Special(kind) => {
                let kind = FileType::from_raw_mode(*kind);
                rustix::fs::mknodat(CWD, &path, kind, Mode::from_raw_mode(mode & 0o7777), 0)?;
            }
        }
        let metadata = path.symlink_metadata()?;
        let id = inode_id(metadata.ino());
        let kind = match handle {
            Some(handle) => {
                let node = FileNode::local(id, None);
                self.keep(&tree, &mut node.state.lock(), Arc::new(handle));
                Kind::File(node)
            }
            None if metadata.is_dir() => Kind::Dir(Children::default()),
            None => Kind::Other(metadata.mode() >> 12),
        };
        tree.insert(Some(parent), name, id, kind);
        Ok(Attr::of(id, &metadata))
    }

    pub(crate) fn readlink(&self, id: NodeId) -> io::Result<OsString> {
        let tree = self.tree.read();
        Ok(std::fs::read_link(self.location(&tree, id)?)?.into_os_string())
    }

    /// Removes a name that is not a directory's. The file lives until the kernel forgets it.
    pub(crate) fn unlink(&self, parent: NodeId, name: &OsStr, resent: bool) -> io::Result<()> {
        let mut tree = self.tree.write();
        let Some(id) = tree.child(parent, name) else { return gone(resent) };
        match tree.kind(id) {
            Some(Kind::Dir(_)) => return Err(Errno::ISDIR.into()),
            Some(Kind::File(file)) => {
                let state = file.state.lock();
                if file.origin.is_some() {
                    self.removed.lock().append(id)?;
                }
                if state.exists {
                    std::fs::rename(self.location(&tree, id)?, self.orphan(id))?;
                }
            }
            _ => {
                std::fs::remove_file(self.location(&tree, id)?)?;
                tree.remove(id);
                return Ok(());
            }
        }
        tree.detach(id);
        Ok(())
    }

    pub(crate) fn rmdir(&self, parent: NodeId, name: &OsStr, resent: bool) -> io::Result<()> {
        let mut tree = self.tree.write();
        let Some(id) = tree.child(parent, name) else { return gone(resent) };
        let children = tree.children(id).ok_or(Errno::NOTDIR)?;
        if !children.is_empty() {
            return Err(Errno::NOTEMPTY.into());
        }
        std::fs::remove_dir(self.location(&tree, id)?)?;
        tree.remove(id);
        Ok(())
    }

    /// Renames, atomically with respect to crashes.
    pub(crate) fn rename(
        &self,
        from: (NodeId, &OsStr),
        to: (NodeId, &OsStr),
        no_replace: bool,
        resent: bool,
    ) -> io::Result<()> {
        let mut tree = self.tree.write();
        let target = tree.child(to.0, to.1);
        let Some(id) = tree.child(from.0, from.1) else { return gone(resent && target.is_some()) };
        if target == Some(id) {
            return Ok(());
        }
        if no_replace && target.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.make_real_below(&tree, id)?;
        let destination = self.location(&tree, to.0)?.join(to.1);
        if let Some(target) = target {
            self.before_replacing(&tree, target)?;
        }
        std::fs::rename(self.location(&tree, id)?, destination)?;
        match target {
            Some(target) if tree.file(target).is_some() => tree.detach(target),
            Some(target) => tree.remove(target),
            None => {}
        }
        tree.rename(id, to.0, to.1);
        if let Some(file) = tree.file(id) {
            file.state.lock().unsynced_name = true;
        }
        Ok(())
    }

    /// Under a new name a manifest file is recognized only by the mark of its real file, so create the real files.
    fn make_real_below(&self, tree: &Tree, id: NodeId) -> io::Result<()> {
        if let Some(file) = tree.file(id) {
            let mut state = file.state.lock();
            if !state.exists {
                self.make_real(tree, file, &mut state)?;
            }
        }
        tree.children(id).into_iter().flat_map(Children::ids).try_for_each(|child| self.make_real_below(tree, child))
    }

    /// Gives the file that is about to lose its name a second one: the kernel may still know it by its inode.
    fn before_replacing(&self, tree: &Tree, target: NodeId) -> io::Result<()> {
        match tree.kind(target) {
            Some(Kind::Dir(children)) if !children.is_empty() => Err(Errno::NOTEMPTY.into()),
            Some(Kind::File(file)) => {
                let mut state = file.state.lock();
                if file.origin.is_some() {
                    if !state.exists {
                        self.make_real(tree, file, &mut state)?;
                    }
                    self.removed.lock().append(target)?;
                }
                match std::fs::hard_link(self.location(tree, target)?, self.orphan(target)) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
                    _ => Ok(()),
                }
            }
            _ => Ok(()),
        }
    }

    /// Handles the kernel's notice that it no longer knows node `id`.
    pub(crate) fn forget(&self, id: NodeId) {
        let mut tree = self.tree.write();
        if !tree.is_orphan(id) {
            return;
        }
        tree.remove(id);
        drop(tree);
        // A file that was never written has none.
        let _ = std::fs::remove_file(self.orphan(id));
    }
}

fn gone(done_already: bool) -> io::Result<()> {
    if done_already { Ok(()) } else { Err(Errno::NOENT.into()) }
}
