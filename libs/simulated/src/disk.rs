//! The simulated disk: a platter behind the engine's seam, with a journal of effects and injected faults.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::Mutex;
use utils::lsn::Lsn;
use virtual_file::OpenMode;
use virtual_file::simulated::{Mounted, SimulatedDisk, SimulatedFile, mount};

use crate::platter::{Effect, InodeId, Node, Platter, Survival};
use crate::random::Random;

/// "No space left on device".
pub const ENOSPC: i32 = 28;
/// "Input/output error".
pub const EIO: i32 = 5;

/// Specifies which effects fail, and how.
#[derive(Clone, Copy)]
pub struct Failure {
    /// Selects the effects that can fail.
    pub of: fn(&Effect) -> bool,
    /// Number of them that succeed first.
    pub after: u64,
    /// Number of them that then fail.
    pub times: u64,
    /// The errno to return.
    pub errno: i32,
}

/// An effect, and what the engine had promised before it.
#[derive(Clone, Debug)]
pub struct Entry {
    /// What was done.
    pub effect: Effect,
    /// What the [`Reporter`] said before.
    pub reported: Option<Lsn>,
}

/// Returns the LSN that the engine currently promises to preserve across a crash.
pub type Reporter = Arc<dyn Fn() -> Lsn + Send + Sync>;

#[derive(Default)]
struct Inner {
    platter: Platter,
    next_inode: InodeId,
    journal: Vec<Entry>,
    /// Number of further effects until the host is dead.
    crash_in: Option<usize>,
    failure: Option<Failure>,
    failed: u64,
    /// The host does not survive a failed sync.
    dies_of_failed_syncs: bool,
}

/// See the module's documentation.
#[derive(Clone)]
pub struct SimDisk {
    root: Utf8PathBuf,
    inner: Arc<Mutex<Inner>>,
    reporter: Arc<Mutex<Option<Reporter>>>,
    delays: Arc<Mutex<Option<Delays>>>,
}

/// How long calls take.
struct Delays {
    random: Random,
    most: Duration,
}

struct SimFile {
    disk: SimDisk,
    inode: InodeId,
}

fn no_such_file() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl SimDisk {
    /// An empty disk with the directory `root`.
    pub fn new(root: &Utf8Path) -> Self {
        let mut platter = Platter::default();
        platter.apply(&Effect::CreateDir { path: root.to_owned() });
        platter.apply(&Effect::SyncDir { path: root.parent().unwrap_or(root).to_owned() });
        Self::of(root, platter)
    }

    /// A disk with the contents of `platter`.
    pub fn of(root: &Utf8Path, platter: Platter) -> Self {
        let inner = Inner { next_inode: platter.next_inode(), platter, ..Inner::default() };
        Self {
            root: root.to_owned(),
            inner: Arc::new(Mutex::new(inner)),
            reporter: Arc::default(),
            delays: Arc::default(),
        }
    }

    /// Serves the paths below the root from this disk. Only one disk at a time can be mounted at a root.
    pub fn mount(&self) -> Mounted {
        mount(self.root.clone(), Arc::new(self.clone()))
    }

    /// Sets the reporter to call before each effect.
    pub fn report(&self, reporter: Option<Reporter>) {
        let old = std::mem::replace(&mut *self.reporter.lock(), reporter);
        drop(old);
    }

    /// After `effects` more effects nothing happens any more and all calls fail.
    pub fn crash_in(&self, effects: usize) {
        self.inner.lock().crash_in = Some(effects);
    }

    /// Whether the host is dead.
    pub fn crashed(&self) -> bool {
        self.inner.lock().crash_in == Some(0)
    }

    /// From now on each call takes up to `most`, drawn from `seed`.
    pub fn delay_calls(&self, seed: u64, most: Duration) {
        *self.delays.lock() = (!most.is_zero()).then(|| Delays { random: Random::new(seed), most });
    }

    fn next_delay(&self) -> Duration {
        self.delays.lock().as_mut().map_or(Duration::ZERO, |delays| {
            // Most are short, as they are on real disks.
            let part = delays.random.below(1000).pow(3) / 1_000_000;
            delays.most * u32::try_from(part).unwrap_or(0) / 1000
        })
    }

    /// Sets which effects fail; `None` for none.
    pub fn fail(&self, failure: Option<Failure>) {
        self.inner.lock().failure = failure;
    }

    /// From now on a failed sync is the end of the host, as it is of a real process.
    pub fn die_of_failed_syncs(&self) {
        self.inner.lock().dies_of_failed_syncs = true;
    }

    /// Number of effects that were made to fail.
    pub fn failed(&self) -> u64 {
        self.inner.lock().failed
    }

    /// Number of changes in the journal.
    pub fn effects(&self) -> usize {
        self.inner.lock().journal.len()
    }

    /// All changes since the last call.
    pub fn take_journal(&self) -> Vec<Entry> {
        std::mem::take(&mut self.inner.lock().journal)
    }

    /// The contents, shared with this disk until one of them changes.
    pub fn platter(&self) -> Platter {
        self.inner.lock().platter.clone()
    }

    /// What a crash at this moment leaves.
    pub fn survivor(&self, survival: Survival) -> Platter {
        self.inner.lock().platter.survivor(survival)
    }

    /// The bytes of a file.
    pub fn read(&self, path: &Utf8Path) -> Option<Vec<u8>> {
        let inner = self.inner.lock();
        match inner.platter.node(path)? {
            Node::File(inode) => Some(inner.platter.bytes(inode).to_vec()),
            Node::Dir => None,
        }
    }

    /// Changes the bytes of an existing file behind the engine's back.
    pub fn damage(&self, path: &Utf8Path, change: impl FnOnce(&mut Vec<u8>)) {
        let mut inner = self.inner.lock();
        match inner.platter.node(path) {
            Some(Node::File(inode)) => inner.platter.damage(inode, change),
            other => panic!("{path} is no file: {other:?}"),
        }
    }

    /// Puts a file on the disk behind the engine's back.
    pub fn place(&self, path: &Utf8Path, bytes: Vec<u8>) {
        let mut inner = self.inner.lock();
        let inode = inner.new_inode();
        inner.platter.apply(&Effect::Create { path: path.to_owned(), inode });
        inner.platter.damage(inode, |content| *content = bytes);
    }

    fn apply(&self, effect: impl FnOnce(&mut Inner) -> io::Result<Option<Effect>>) -> io::Result<()> {
        let reporter = self.reporter.lock().clone();
        let reported = reporter.as_ref().map(|report| report());
        let mut inner = self.inner.lock();
        inner.check_alive()?;
        let Some(effect) = effect(&mut inner)? else { return Ok(()) };
        inner.perform(effect, reported)
    }
}

impl Inner {
    fn check_alive(&self) -> io::Result<()> {
        if self.crash_in == Some(0) { Err(io::Error::from_raw_os_error(EIO)) } else { Ok(()) }
    }

    fn new_inode(&mut self) -> InodeId {
        self.next_inode += 1;
        self.next_inode - 1
    }

    fn perform(&mut self, effect: Effect, reported: Option<Lsn>) -> io::Result<()> {
        if let Some(left) = &mut self.crash_in {
            *left -= 1;
        }
        if let Some(errno) = self.failure_of(&effect) {
            self.failed += 1;
            let is_sync = matches!(effect, Effect::Sync { .. } | Effect::SyncDir { .. });
            if self.dies_of_failed_syncs && is_sync {
                self.crash_in = Some(0);
            }
            match effect {
                Effect::Write { inode, offset, bytes } => {
                    // Part of a failed write may be on disk.
                    let part = bytes.len() / 2 / 512 * 512;
                    self.platter.apply(&Effect::Write { inode, offset, bytes: bytes[..part].into() });
                }
                Effect::Sync { inode } => self.platter.fail_sync(inode),
                _ => {}
            }
            return Err(io::Error::from_raw_os_error(errno));
        }
        self.platter.apply(&effect);
        self.journal.push(Entry { effect, reported });
        Ok(())
    }

    fn failure_of(&mut self, effect: &Effect) -> Option<i32> {
        let failure = self.failure.as_mut().filter(|failure| (failure.of)(effect))?;
        if failure.after > 0 {
            failure.after -= 1;
            return None;
        }
        failure.times = failure.times.checked_sub(1)?;
        Some(failure.errno)
    }
}

impl SimulatedDisk for SimDisk {
    fn delay(&self) -> Duration {
        self.next_delay()
    }

    fn open(&self, path: &Utf8Path, mode: OpenMode) -> io::Result<Arc<dyn SimulatedFile>> {
        if mode == OpenMode::CreateNew {
            self.apply(|inner| {
                let has_parent = path.parent().is_some_and(|dir| inner.platter.node(dir) == Some(Node::Dir));
                match inner.platter.node(path) {
                    Some(_) => Err(io::ErrorKind::AlreadyExists.into()),
                    None if !has_parent => Err(no_such_file()),
                    None => Ok(Some(Effect::Create { path: path.to_owned(), inode: inner.new_inode() })),
                }
            })?;
        }
        let inner = self.inner.lock();
        inner.check_alive()?;
        match inner.platter.node(path) {
            Some(Node::File(inode)) => Ok(Arc::new(SimFile { disk: self.clone(), inode })),
            Some(Node::Dir) => Err(io::ErrorKind::IsADirectory.into()),
            None => Err(no_such_file()),
        }
    }

    fn rename(&self, from: &Utf8Path, to: &Utf8Path) -> io::Result<()> {
        self.apply(|inner| {
            inner.platter.node(from).ok_or_else(no_such_file)?;
            Ok(Some(Effect::Rename { from: from.to_owned(), to: to.to_owned() }))
        })
    }

    fn unlink(&self, path: &Utf8Path) -> io::Result<()> {
        self.apply(|inner| {
            inner.platter.node(path).ok_or_else(no_such_file)?;
            Ok(Some(Effect::Unlink { path: path.to_owned() }))
        })
    }

    fn fsync_dir(&self, path: &Utf8Path) -> io::Result<()> {
        self.apply(|inner| {
            inner.platter.node(path).ok_or_else(no_such_file)?;
            Ok(Some(Effect::SyncDir { path: path.to_owned() }))
        })
    }

    fn list_dir(&self, path: &Utf8Path) -> io::Result<Vec<String>> {
        let inner = self.inner.lock();
        inner.check_alive()?;
        match inner.platter.node(path) {
            Some(Node::Dir) => Ok(inner.platter.list(path)),
            _ => Err(no_such_file()),
        }
    }

    fn create_dir_all(&self, path: &Utf8Path) -> io::Result<()> {
        let inside = path.ancestors().take_while(|dir| dir.starts_with(&self.root));
        let mut dirs: Vec<&Utf8Path> = inside.collect();
        dirs.reverse();
        for dir in dirs {
            self.apply(|inner| {
                let exists = inner.platter.node(dir).is_some();
                Ok((!exists).then(|| Effect::CreateDir { path: dir.to_owned() }))
            })?;
        }
        Ok(())
    }
}

impl SimulatedFile for SimFile {
    fn delay(&self) -> Duration {
        self.disk.next_delay()
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        let inner = self.disk.inner.lock();
        inner.check_alive()?;
        let rest = inner.platter.bytes(self.inode).get(offset as usize..).unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.apply(|_| Ok(Some(Effect::Write { inode: self.inode, offset, bytes: bytes.into() })))
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.apply(|_| Ok(Some(Effect::Sync { inode: self.inode })))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.apply(|_| Ok(Some(Effect::SetLen { inode: self.inode, len })))
    }

    fn len(&self) -> io::Result<u64> {
        let inner = self.disk.inner.lock();
        inner.check_alive()?;
        Ok(inner.platter.bytes(self.inode).len() as u64)
    }
}
