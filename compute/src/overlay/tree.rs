//! The names: a tree of nodes, entirely in memory.
//!
//! The kernel knows files by node number, across restarts of the daemon. A file of the manifest has the number of its
//! position there ([`lazy_id`]), before and after it gets a real file; everything else has the number of its inode.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use crate::overlay::file::FileNode;
pub(crate) use crate::overlay::node_id::{NodeId, ROOT, inode_id, lazy_id};

pub(crate) enum Kind {
    Dir(Children),
    File(Arc<FileNode>),
    /// Symbolic links, sockets: the type as in directory entries.
    Other(u32),
}

impl Kind {
    /// The type as in directory entries.
    pub(crate) fn dirent_type(&self) -> u32 {
        match self {
            Kind::Dir(_) => 4,
            Kind::File(_) => 8,
            Kind::Other(kind) => *kind,
        }
    }
}

#[derive(Default)]
pub(crate) struct Children {
    by_name: HashMap<OsString, NodeId>,
    /// The order of listings: a position in it survives removals and restarts.
    by_id: BTreeMap<NodeId, OsString>,
}

struct Entry {
    /// `None`: the root, or a file without a name.
    parent: Option<NodeId>,
    name: OsString,
    kind: Kind,
}

pub(crate) struct Tree {
    entries: HashMap<NodeId, Entry>,
}

impl Tree {
    pub(crate) fn new() -> Self {
        let root = Entry { parent: None, name: OsString::new(), kind: Kind::Dir(Children::default()) };
        Self { entries: HashMap::from([(ROOT, root)]) }
    }

    pub(crate) fn kind(&self, id: NodeId) -> Option<&Kind> {
        self.entries.get(&id).map(|entry| &entry.kind)
    }

    pub(crate) fn file(&self, id: NodeId) -> Option<&Arc<FileNode>> {
        match self.kind(id) {
            Some(Kind::File(file)) => Some(file),
            _ => None,
        }
    }

    pub(crate) fn files(&self) -> impl Iterator<Item = &Arc<FileNode>> {
        self.entries.values().filter_map(|entry| match &entry.kind {
            Kind::File(file) => Some(file),
            _ => None,
        })
    }

    pub(crate) fn children(&self, dir: NodeId) -> Option<&Children> {
        match self.kind(dir) {
            Some(Kind::Dir(children)) => Some(children),
            _ => None,
        }
    }

    pub(crate) fn child(&self, dir: NodeId, name: &OsStr) -> Option<NodeId> {
        self.children(dir)?.by_name.get(name).copied()
    }

    /// Whether the node has lost its name.
    pub(crate) fn is_orphan(&self, id: NodeId) -> bool {
        id != ROOT && self.entries.get(&id).is_some_and(|entry| entry.parent.is_none())
    }

    /// Path below the root; `None` if the node has none.
    pub(crate) fn path(&self, id: NodeId) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = id;
        while at != ROOT {
            let entry = self.entries.get(&at)?;
            names.push(entry.name.as_os_str());
            at = entry.parent?;
        }
        Some(names.iter().rev().collect())
    }

    pub(crate) fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.entries.get(&id)?.parent
    }

    /// Adds a node to directory `parent`; without one it is an orphan.
    pub(crate) fn insert(&mut self, parent: Option<NodeId>, name: &OsStr, id: NodeId, kind: Kind) {
        self.entries.insert(id, Entry { parent: None, name: OsString::new(), kind });
        if let Some(parent) = parent {
            self.attach(id, parent, name);
        }
    }

    /// Removes the node's name.
    pub(crate) fn detach(&mut self, id: NodeId) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        let (Some(parent), name) = (entry.parent.take(), std::mem::take(&mut entry.name)) else { return };
        if let Some(Entry { kind: Kind::Dir(siblings), .. }) = self.entries.get_mut(&parent) {
            siblings.by_name.remove(&name);
            siblings.by_id.remove(&id);
        }
    }

    pub(crate) fn remove(&mut self, id: NodeId) {
        self.detach(id);
        self.entries.remove(&id);
    }

    pub(crate) fn rename(&mut self, id: NodeId, parent: NodeId, name: &OsStr) {
        self.detach(id);
        debug_assert!(self.child(parent, name).is_none(), "what had the name before is still there");
        self.attach(id, parent, name);
    }

    fn attach(&mut self, id: NodeId, parent: NodeId, name: &OsStr) {
        if let Some(Entry { kind: Kind::Dir(siblings), .. }) = self.entries.get_mut(&parent) {
            siblings.by_name.insert(name.to_owned(), id);
            siblings.by_id.insert(id, name.to_owned());
        }
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.parent = Some(parent);
            entry.name = name.to_owned();
        }
        debug_assert!(self.is_sound(id), "node {id} is not where its directory has it");
    }

    /// Whether a node and its directory agree on each other, and neither lists the other twice.
    fn is_sound(&self, id: NodeId) -> bool {
        let Some(entry) = self.entries.get(&id) else { return true };
        let Some(parent) = entry.parent else { return entry.name.is_empty() };
        let Some(siblings) = self.children(parent) else { return false };
        siblings.by_name.get(&entry.name) == Some(&id)
            && siblings.by_id.get(&id) == Some(&entry.name)
            && siblings.by_name.len() == siblings.by_id.len()
            && self.path(id).is_some()
    }
}

impl Children {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The children with numbers above `after`, in order.
    pub(crate) fn after(&self, after: NodeId) -> impl Iterator<Item = (NodeId, &OsStr)> {
        self.by_id.range(after + 1..).map(|(id, name)| (*id, name.as_os_str()))
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = NodeId> {
        self.by_id.keys().copied()
    }
}
