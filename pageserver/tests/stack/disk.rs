//! A disk in memory that knows what is durable: it can lose power before any effect, refuse one, and then be found with
//! only what was synced, with everything, or with a random part of what was not.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver::virtual_file::OpenMode;
use pageserver::virtual_file::simulated::{SimulatedDisk, SimulatedFile};
use parking_lot::Mutex;

/// Sectors are written whole or not at all.
const SECTOR: usize = 512;

/// What is found after a power cut.
#[derive(Clone, Copy, Debug)]
pub enum Survival {
    /// Only what was synced.
    Synced,
    /// Everything.
    All,
    /// What was synced, and a random part of the rest: some sectors of some writes, and some of the last directory
    /// changes, in their order.
    Random(u64),
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// Power is lost before the effect of this number.
    PowerCut(u64),
    /// The effect of this number, and as many after it, find no space.
    NoSpace(u64, u64),
}

#[derive(Clone, Debug)]
enum FileChange {
    Write(u64, Vec<u8>),
    SetLen(u64),
}

#[derive(Clone, Debug, Default)]
struct File {
    now: Vec<u8>,
    synced: Vec<u8>,
    unsynced: Vec<FileChange>,
}

type Inode = usize;

#[derive(Clone, Debug)]
enum DirChange {
    Link(Utf8PathBuf, Inode),
    Unlink(Utf8PathBuf),
    Rename(Utf8PathBuf, Utf8PathBuf),
}

type Names = BTreeMap<Utf8PathBuf, Inode>;

#[derive(Clone, Debug)]
struct State {
    files: Vec<File>,
    names: Names,
    synced_names: Names,
    unsynced: Vec<DirChange>,
    effects: u64,
    trouble: Trouble,
    dead: bool,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct Disk(Arc<Mutex<State>>);

struct OpenFile {
    disk: Disk,
    inode: Inode,
}

impl FileChange {
    fn apply(&self, to: &mut Vec<u8>) {
        match self {
            FileChange::Write(offset, bytes) => {
                let (start, end) = (*offset as usize, *offset as usize + bytes.len());
                to.resize(to.len().max(end), 0);
                to[start..end].copy_from_slice(bytes);
            }
            FileChange::SetLen(len) => to.resize(*len as usize, 0),
        }
    }
}

impl DirChange {
    fn apply(&self, to: &mut Names) {
        match self {
            DirChange::Link(path, inode) => drop(to.insert(path.clone(), *inode)),
            DirChange::Unlink(path) => drop(to.remove(path)),
            DirChange::Rename(from, to_path) => {
                if let Some(inode) = to.remove(from) {
                    to.insert(to_path.clone(), inode);
                }
            }
        }
    }

    fn dir(&self) -> Option<&Utf8Path> {
        match self {
            DirChange::Link(path, _) | DirChange::Unlink(path) | DirChange::Rename(_, path) => path.parent(),
        }
    }
}

/// A small generator, so that a survival can be repeated from its number.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % limit.max(1)
    }
}

impl File {
    fn after_power_cut(&self, chance: &mut Chance) -> Vec<u8> {
        let mut left = self.synced.clone();
        for change in &self.unsynced {
            match change {
                FileChange::Write(offset, bytes) => {
                    for (number, sector) in bytes.chunks(SECTOR).enumerate().filter(|_| chance.below(2) == 0) {
                        FileChange::Write(offset + (number * SECTOR) as u64, sector.to_vec()).apply(&mut left);
                    }
                }
                FileChange::SetLen(_) if chance.below(2) == 0 => change.apply(&mut left),
                FileChange::SetLen(_) => {}
            }
        }
        left
    }
}

impl State {
    /// Counts an effect, and says whether it may happen.
    fn effect(&mut self) -> io::Result<()> {
        let number = self.effects;
        self.effects += 1;
        match self.trouble {
            Trouble::PowerCut(at) if number >= at => self.dead = true,
            Trouble::NoSpace(from, count) if (from..from + count).contains(&number) => {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            _ => {}
        }
        self.alive()
    }

    fn alive(&self) -> io::Result<()> {
        if self.dead { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    fn change_dir(&mut self, change: DirChange) {
        change.apply(&mut self.names);
        self.unsynced.push(change);
    }

    fn change_file(&mut self, inode: Inode, change: FileChange) {
        let file = &mut self.files[inode];
        change.apply(&mut file.now);
        file.unsynced.push(change);
    }
}

impl Disk {
    pub fn new(trouble: Trouble) -> Self {
        Self(Arc::new(Mutex::new(State {
            files: Vec::new(),
            names: Names::new(),
            synced_names: Names::new(),
            unsynced: Vec::new(),
            effects: 0,
            trouble,
            dead: false,
        })))
    }

    /// Effects so far.
    pub fn effects(&self) -> u64 {
        self.0.lock().effects
    }

    /// Whether the power is off.
    pub fn is_dead(&self) -> bool {
        self.0.lock().dead
    }

    /// Names of all files.
    pub fn names(&self) -> Vec<Utf8PathBuf> {
        self.0.lock().names.keys().cloned().collect()
    }

    /// The disk as it is found after the power came back.
    pub fn after_power_cut(&self, survival: Survival, trouble: Trouble) -> Disk {
        let state = self.0.lock();
        let mut names = state.synced_names.clone();
        let mut chance = Chance(if let Survival::Random(seed) = survival { seed } else { 0 });
        let kept = match survival {
            Survival::Synced => 0,
            Survival::All => state.unsynced.len(),
            Survival::Random(_) => chance.below(state.unsynced.len() as u64 + 1) as usize,
        };
        state.unsynced[..kept].iter().for_each(|change| change.apply(&mut names));
        let contents = |file: &File, chance: &mut Chance| match survival {
            Survival::Synced => file.synced.clone(),
            Survival::All => file.now.clone(),
            Survival::Random(_) => file.after_power_cut(chance),
        };
        let files = state.files.iter().map(|file| {
            let now = contents(file, &mut chance);
            File { synced: now.clone(), now, unsynced: Vec::new() }
        });
        let files = files.collect();
        let synced_names = names.clone();
        let state = State { files, names, synced_names, unsynced: Vec::new(), effects: 0, trouble, dead: false };
        Disk(Arc::new(Mutex::new(state)))
    }
}

impl SimulatedDisk for Disk {
    fn open(&self, path: &Utf8Path, mode: OpenMode) -> io::Result<Arc<dyn SimulatedFile>> {
        let mut state = self.0.lock();
        state.alive()?;
        let inode = match (state.names.get(path).copied(), mode) {
            (Some(inode), OpenMode::Read) => inode,
            (None, OpenMode::Read) => return Err(io::ErrorKind::NotFound.into()),
            (Some(_), OpenMode::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (None, OpenMode::CreateNew) => {
                state.effect()?;
                state.files.push(File::default());
                let inode = state.files.len() - 1;
                state.change_dir(DirChange::Link(path.to_owned(), inode));
                inode
            }
        };
        Ok(Arc::new(OpenFile { disk: self.clone(), inode }))
    }

    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.effect()?;
        if !state.names.contains_key(from) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.change_dir(DirChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn unlink(&self, path: &Utf8Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.alive()?;
        if !state.names.contains_key(path) {
            return Err(io::ErrorKind::NotFound.into());
        }
        state.effect()?;
        state.change_dir(DirChange::Unlink(path.to_owned()));
        Ok(())
    }

    fn fsync_dir(&self, path: &Utf8Path) -> io::Result<()> {
        let mut state = self.0.lock();
        state.effect()?;
        // A journal: everything up to the last change of this directory gets durable with it.
        let last = state.unsynced.iter().rposition(|change| change.dir() == Some(path));
        let done: Vec<_> = state.unsynced.drain(..last.map_or(0, |last| last + 1)).collect();
        done.iter().for_each(|change| change.apply(&mut state.synced_names));
        Ok(())
    }

    fn list_dir(&self, path: &Utf8Path) -> io::Result<Vec<String>> {
        let state = self.0.lock();
        state.alive()?;
        let inside = state.names.keys().filter_map(|name| name.strip_prefix(path).ok()?.iter().next());
        let mut names: Vec<String> = inside.map(str::to_owned).collect();
        names.dedup();
        if names.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(names) }
    }

    fn create_dir_all(&self, _path: &Utf8Path) -> io::Result<()> {
        // Directories come with their files.
        self.0.lock().effect()
    }
}

impl SimulatedFile for OpenFile {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let state = self.disk.0.lock();
        state.alive()?;
        let rest = state.files[self.inode].now.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(into.len());
        into[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.effect()?;
        state.change_file(self.inode, FileChange::Write(offset, bytes.to_vec()));
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.effect()?;
        let file = &mut state.files[self.inode];
        file.synced = file.now.clone();
        file.unsynced.clear();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.0.lock();
        state.effect()?;
        state.change_file(self.inode, FileChange::SetLen(len));
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        let state = self.disk.0.lock();
        state.alive()?;
        Ok(state.files[self.inode].now.len() as u64)
    }
}
