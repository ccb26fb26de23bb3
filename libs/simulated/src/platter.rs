//! The contents of a disk: what a crash must keep, what it may lose, and what it may tear.
//!
//! The rules are those of the weakest POSIX guarantees. Contents and length of a file are durable after a sync of
//! that file; names are durable after a sync of their directory, and a sync of a file does not cover its name. A
//! rename is atomic. Data written before a failed sync may never become durable, whatever later syncs report. Sectors
//! are written atomically, but those of one write in any order, and possibly only some of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};

use super::random::Random;

const SECTOR: usize = 512;

/// A file, whatever its name.
pub type InodeId = u64;

/// A change to a disk.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the fields are what their names say")]
pub enum Effect {
    /// A new, empty file.
    Create { path: Utf8PathBuf, inode: InodeId },
    /// A new directory.
    CreateDir { path: Utf8PathBuf },
    /// Bytes, at an offset in bytes.
    Write { inode: InodeId, offset: u64, bytes: Arc<[u8]> },
    /// A length in bytes.
    SetLen { inode: InodeId, len: u64 },
    /// Contents and length are durable.
    Sync { inode: InodeId },
    /// A file has another name, and replaces what had it.
    Rename { from: Utf8PathBuf, to: Utf8PathBuf },
    /// A file has no name any more.
    Unlink { path: Utf8PathBuf },
    /// Names in a directory are durable.
    SyncDir { path: Utf8PathBuf },
}

/// Which changes survive a crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Survival {
    /// Only those that were synced.
    Synced,
    /// All of them, as if only the process had died.
    Everything,
    /// Those that were synced and some of the others, with torn writes, drawn from this seed.
    Torn(u64),
}

/// What a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A directory.
    Dir,
    /// A file.
    File(InodeId),
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: usize, bytes: Arc<[u8]> },
    Len(usize),
}

#[derive(Clone, Debug)]
enum NameChange {
    Link(Utf8PathBuf, Node),
    Rename(Utf8PathBuf, Utf8PathBuf, Node),
    Unlink(Utf8PathBuf),
}

#[derive(Clone, Debug, Default)]
struct Inode {
    current: Arc<Vec<u8>>,
    synced: Arc<Vec<u8>>,
    unsynced: Vec<Change>,
    /// A sync has failed, so whatever was unsynced then will never be durable.
    lossy: bool,
}

/// By path: as text, which is compared many times faster.
type Names = BTreeMap<String, Node>;

/// See the module's documentation. Clones share the bytes.
#[derive(Clone, Debug, Default)]
pub struct Platter {
    inodes: BTreeMap<InodeId, Inode>,
    names: Names,
    synced_names: Names,
    unsynced_names: Vec<NameChange>,
}

impl Platter {
    /// What is at `path`.
    pub fn node(&self, path: &Utf8Path) -> Option<Node> {
        self.names.get(path.as_str()).copied()
    }

    /// The contents of a file.
    pub fn bytes(&self, inode: InodeId) -> &[u8] {
        self.inodes.get(&inode).map_or(&[], |inode| &inode.current)
    }

    /// Changes bytes behind the engine's back: damage, not an effect.
    pub fn damage(&mut self, inode: InodeId, change: impl FnOnce(&mut Vec<u8>)) {
        change(Arc::make_mut(&mut self.inodes.entry(inode).or_default().current));
    }

    /// Names of a directory's entries.
    pub fn list(&self, dir: &Utf8Path) -> Vec<String> {
        let inside = self.names.range(format!("{dir}/")..).map_while(|(path, _)| below(path, dir));
        inside.filter(|name| !name.contains('/')).map(str::to_owned).collect()
    }

    /// All files.
    pub fn files(&self) -> Vec<Utf8PathBuf> {
        let is_file = |node: &Node| matches!(node, Node::File(_));
        self.names.iter().filter(|(_, node)| is_file(node)).map(|(path, _)| path.into()).collect()
    }

    /// The number of the next file.
    pub fn next_inode(&self) -> InodeId {
        self.inodes.last_key_value().map_or(1, |(last, _)| last + 1)
    }

    /// Makes a change.
    pub fn apply(&mut self, effect: &Effect) {
        match effect {
            Effect::Create { path, inode } => {
                self.inodes.insert(*inode, Inode::default());
                self.rename_or_link(NameChange::Link(path.clone(), Node::File(*inode)));
            }
            Effect::CreateDir { path } => self.rename_or_link(NameChange::Link(path.clone(), Node::Dir)),
            Effect::Write { inode, offset, bytes } => {
                self.change(*inode, Change::Write { offset: *offset as usize, bytes: Arc::clone(bytes) });
            }
            Effect::SetLen { inode, len } => self.change(*inode, Change::Len(*len as usize)),
            Effect::Sync { inode } => {
                if let Some(inode) = self.inodes.get_mut(inode) {
                    inode.sync();
                }
            }
            Effect::Rename { from, to } => {
                if let Some(node) = self.node(from) {
                    self.rename_or_link(NameChange::Rename(from.clone(), to.clone(), node));
                }
            }
            Effect::Unlink { path } => self.rename_or_link(NameChange::Unlink(path.clone())),
            Effect::SyncDir { path } => self.sync_dir(path),
        }
    }

    /// A failing sync: the system reports it once. It then considers the data written even though it is not, so that
    /// reads see it, later syncs succeed, and a crash loses it.
    pub fn fail_sync(&mut self, inode: InodeId) {
        if let Some(inode) = self.inodes.get_mut(&inode) {
            inode.lossy = true;
            inode.unsynced.clear();
        }
    }

    fn change(&mut self, inode: InodeId, change: Change) {
        let inode = self.inodes.entry(inode).or_default();
        apply_change(Arc::make_mut(&mut inode.current), &change);
        inode.unsynced.push(change);
    }

    fn rename_or_link(&mut self, change: NameChange) {
        apply_name(&mut self.names, &change);
        self.unsynced_names.push(change);
    }

    fn sync_dir(&mut self, dir: &Utf8Path) {
        let is_inside = |path: &Utf8PathBuf| below(path.as_str(), dir).is_some_and(|name| !name.contains('/'));
        let concerned = |change: &NameChange| match change {
            NameChange::Link(path, _) | NameChange::Unlink(path) => is_inside(path),
            NameChange::Rename(from, to, _) => is_inside(from) || is_inside(to),
        };
        let (now, later) = std::mem::take(&mut self.unsynced_names).into_iter().partition(concerned);
        self.unsynced_names = later;
        let now: Vec<NameChange> = now;
        now.iter().for_each(|change| apply_name(&mut self.synced_names, change));
    }

    /// The disk as found after a crash at this moment.
    pub fn survivor(&self, survival: Survival) -> Platter {
        let mut random = Random::new(if let Survival::Torn(seed) = survival { seed } else { 0 });
        let names = match survival {
            Survival::Synced => self.synced_names.clone(),
            Survival::Everything => self.names.clone(),
            Survival::Torn(_) => self.torn_names(&mut random),
        };
        let names = reachable(names);
        let mut inodes = BTreeMap::new();
        for node in names.values() {
            let Node::File(id) = node else { continue };
            let inode = self.inodes.get(id).cloned().unwrap_or_default();
            let bytes = match survival {
                Survival::Synced => inode.synced,
                Survival::Everything => inode.current,
                Survival::Torn(_) => inode.torn(&mut random),
            };
            inodes.insert(*id, Inode { current: Arc::clone(&bytes), synced: bytes, ..Inode::default() });
        }
        Platter { inodes, synced_names: names.clone(), names, unsynced_names: Vec::new() }
    }

    /// A journal preserves a prefix of the changes; the weakest guarantee is any subset: both are tried.
    fn torn_names(&self, random: &mut Random) -> Names {
        let mut names = self.synced_names.clone();
        let prefix = random.below(self.unsynced_names.len() as u64 + 1) as usize;
        let any_subset = random.coin();
        for (at, change) in self.unsynced_names.iter().enumerate() {
            if if any_subset { random.coin() } else { at < prefix } {
                apply_name(&mut names, change);
            }
        }
        names
    }
}

impl Inode {
    fn sync(&mut self) {
        let unsynced = std::mem::take(&mut self.unsynced);
        if self.lossy {
            unsynced.iter().for_each(|change| apply_change(Arc::make_mut(&mut self.synced), change));
        } else {
            self.synced = Arc::clone(&self.current);
        }
    }

    fn torn(&self, random: &mut Random) -> Arc<Vec<u8>> {
        if self.unsynced.is_empty() {
            return Arc::clone(&self.synced);
        }
        let mut bytes = self.synced.to_vec();
        for change in &self.unsynced {
            match change {
                Change::Len(_) if random.coin() => apply_change(&mut bytes, change),
                Change::Len(_) => {}
                Change::Write { offset, bytes: written } => {
                    // Of four writes, one survives, one does not, and two are torn.
                    let fate = random.below(4);
                    for (number, sector) in written.chunks(SECTOR).enumerate() {
                        if fate == 0 || fate >= 2 && random.coin() {
                            let offset = offset + number * SECTOR;
                            apply_change(&mut bytes, &Change::Write { offset, bytes: sector.into() });
                        }
                    }
                }
            }
        }
        Arc::new(bytes)
    }
}

/// The rest of a path below `dir`.
fn below<'a>(path: &'a str, dir: &Utf8Path) -> Option<&'a str> {
    path.strip_prefix(dir.as_str())?.strip_prefix('/')
}

fn apply_change(bytes: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Len(len) => bytes.resize(*len, 0),
        Change::Write { offset, bytes: written } => {
            let end = offset + written.len();
            if bytes.len() < end {
                bytes.resize(end, 0);
            }
            bytes[*offset..end].copy_from_slice(written);
        }
    }
}

fn apply_name(names: &mut Names, change: &NameChange) {
    match change {
        NameChange::Link(path, node) => {
            names.insert(path.to_string(), *node);
        }
        NameChange::Rename(from, to, node) => {
            names.remove(from.as_str());
            names.insert(to.to_string(), *node);
        }
        NameChange::Unlink(path) => {
            names.remove(path.as_str());
        }
    }
}

/// Drops the entries of directories that are gone. The root is the entry with the shortest path.
fn reachable(names: Names) -> Names {
    let mut kept = Names::new();
    for (path, node) in names {
        let is_root = kept.is_empty();
        let parent = path.rsplit_once('/').map(|(parent, _)| parent);
        if is_root || parent.is_some_and(|parent| kept.get(parent) == Some(&Node::Dir)) {
            kept.insert(path, node);
        }
    }
    kept
}
