//! The overlay against a model: a map from paths to bytes, under random changes, reloads and torn truncations.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::Arc;

use proptest::prelude::*;

use super::Make;
use super::tree::{NodeId, ROOT};
use crate::fetch::{Policy, Volume};
use crate::layout::Layout;
use crate::overlay::Overlay;
use crate::source::{PageSource, RelFork, RelationFile, SourceError};
use crate::{BLOCK, manifest};

const FILES: u32 = 3;
const BLOCKS: u32 = 6;

/// Each byte of a block identifies its relation and block.
struct Pattern;

fn pattern(rel: u32, block: u32) -> u8 {
    (rel * 16 + block + 1) as u8
}

impl PageSource for Pattern {
    async fn manifest(&self) -> Result<Vec<RelationFile>, SourceError> {
        Ok(Vec::new())
    }

    async fn read_blocks(&self, rel: RelFork, first: u32, count: u32, out: &mut [u8]) -> Result<(), SourceError> {
        tokio::task::yield_now().await;
        for (block, out) in (first..first + count).zip(out.chunks_exact_mut(BLOCK)) {
            out.fill(pattern(rel.rel, block));
        }
        Ok(())
    }
}

#[derive(Clone, Debug)]
enum Op {
    Read {
        file: usize,
        offset: u64,
        size: usize,
    },
    Write {
        file: usize,
        offset: u64,
        size: usize,
        byte: u8,
    },
    Truncate {
        file: usize,
        size: u64,
    },
    Unlink {
        file: usize,
    },
    Create {
        file: usize,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Allocate {
        file: usize,
        offset: u64,
        size: u64,
    },
    /// The daemon dies and another takes over.
    Reload {
        resume: bool,
    },
}

/// Three names from the manifest, three others.
const NAMES: [&str; 6] = ["10", "11", "12", "a", "b", "c"];

fn offset() -> impl Strategy<Value = u64> {
    prop_oneof![
        3 => (0..9_u64).prop_map(|block| block * BLOCK as u64),
        1 => 0..8 * BLOCK as u64,
        1 => (0..16_u64).prop_map(|page| page * 4096),
    ]
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        3 => (1..4_usize).prop_map(|blocks| blocks * BLOCK),
        1 => 1..3 * BLOCK,
        1 => Just(4096_usize),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let file = || 0..NAMES.len();
    prop_oneof![
        6 => (file(), offset(), size()).prop_map(|(file, offset, size)| Op::Read { file, offset, size }),
        6 => (file(), offset(), size(), 100..200_u8)
            .prop_map(|(file, offset, size, byte)| Op::Write { file, offset, size, byte }),
        3 => (file(), offset()).prop_map(|(file, size)| Op::Truncate { file, size }),
        1 => file().prop_map(|file| Op::Unlink { file }),
        2 => file().prop_map(|file| Op::Create { file }),
        1 => (file(), file()).prop_map(|(from, to)| Op::Rename { from, to }),
        1 => (file(), offset(), size())
            .prop_map(|(file, offset, size)| Op::Allocate { file, offset, size: size as u64 }),
        2 => any::<bool>().prop_map(|resume| Op::Reload { resume }),
    ]
}

struct World {
    layout: Layout,
    volume: Arc<Volume<Pattern>>,
    model: BTreeMap<&'static str, Vec<u8>>,
    dir: NodeId,
}

impl World {
    fn new(root: &std::path::Path) -> Self {
        let layout = Layout::new(root);
        std::fs::create_dir_all(layout.upper().join("base/5")).unwrap();
        let file = |rel| RelationFile {
            path: format!("base/5/{rel}"),
            rel: RelFork { spc: 1663, db: 5, rel, fork: 0 },
            blocks: BLOCKS,
        };
        let rels = 10..10 + FILES;
        manifest::write(&layout.manifest(), &rels.clone().map(file).collect::<Vec<_>>()).unwrap();
        let contents = |rel| (0..BLOCKS).flat_map(|block| [pattern(rel, block); BLOCK]).collect();
        let model = rels.map(|rel| (NAMES[rel as usize - 10], contents(rel))).collect();
        let (volume, dir) = open(&layout, false);
        Self { layout, volume, model, dir }
    }

    async fn apply(&mut self, op: &Op) {
        let overlay = &self.volume.overlay;
        let node = |file: usize| overlay.lookup(self.dir, OsStr::new(NAMES[file])).unwrap().map(|attr| attr.id);
        let file = |file: usize| node(file).map(|id| overlay.file(id).unwrap());
        match *op {
            Op::Read { file: name, offset, size } => {
                let Some(file) = file(name) else { return };
                let seen = read(&self.volume, &file, offset, size).await;
                let model = &self.model[NAMES[name]];
                let from = model.len().min(offset as usize);
                let expected = &model[from..model.len().min(offset as usize + size)];
                assert_eq!(digest(&seen), digest(expected), "{op:?}");
            }
            Op::Write { file: name, offset, size, byte } => {
                let Some(file) = file(name) else { return };
                self.volume.write(&file, offset, &vec![byte; size]).await.unwrap();
                let model = self.model.get_mut(NAMES[name]).unwrap();
                let end = offset as usize + size;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].fill(byte);
            }
            Op::Truncate { file: name, size } => {
                let Some(file) = file(name) else { return };
                self.volume.truncate(&file, size).await.unwrap();
                self.model.get_mut(NAMES[name]).unwrap().resize(size as usize, 0);
            }
            Op::Allocate { file: name, offset, size } => {
                let Some(file) = file(name) else { return };
                overlay.allocate(&file, false, offset, size).unwrap();
                let end = (offset + size) as usize;
                let model = self.model.get_mut(NAMES[name]).unwrap();
                model.resize(model.len().max(end), 0);
            }
            Op::Unlink { file: name } => {
                let Some(id) = node(name) else { return };
                overlay.unlink(self.dir, OsStr::new(NAMES[name]), false).unwrap();
                overlay.unlink(self.dir, OsStr::new(NAMES[name]), true).unwrap();
                overlay.forget(id);
                self.model.remove(NAMES[name]);
            }
            Op::Create { file: name } => {
                let made = overlay.make(self.dir, OsStr::new(NAMES[name]), 0o600, &Make::File, false);
                assert_eq!(made.is_ok(), !self.model.contains_key(NAMES[name]));
                self.model.entry(NAMES[name]).or_default();
            }
            Op::Rename { from, to } => {
                let target = node(to);
                let (old, new) = (OsStr::new(NAMES[from]), OsStr::new(NAMES[to]));
                let renamed = overlay.rename((self.dir, old), (self.dir, new), false, false);
                assert_eq!(renamed.is_ok(), self.model.contains_key(NAMES[from]));
                if from != to && renamed.is_ok() {
                    target.into_iter().for_each(|id| overlay.forget(id));
                    let contents = self.model.remove(NAMES[from]).unwrap();
                    self.model.insert(NAMES[to], contents);
                }
            }
            Op::Reload { resume } => {
                self.settle().await;
                (self.volume, self.dir) = open(&self.layout, resume);
            }
        }
    }

    /// Waits for operations in flight: two volumes must not write to one overlay.
    async fn settle(&self) {
        while Arc::strong_count(&self.volume) > 1 || self.volume.is_busy() {
            tokio::task::yield_now().await;
        }
    }

    async fn check_all(&self) {
        let overlay = &self.volume.overlay;
        let listed = overlay.list(self.dir, 0, 100).unwrap();
        let names: BTreeSet<_> = listed.iter().map(|entry| entry.name.to_str().unwrap().to_owned()).collect();
        let expected: BTreeSet<_> = self.model.keys().map(|name| (*name).to_owned()).collect();
        assert_eq!(names, expected);
        for (name, contents) in &self.model {
            let attr = overlay.lookup(self.dir, OsStr::new(name)).unwrap().unwrap();
            assert_eq!(attr.size, contents.len() as u64, "size of {name}");
            let file = overlay.file(attr.id).unwrap();
            let seen = read(&self.volume, &file, 0, 1 << 20).await;
            assert_eq!(digest(&seen), digest(contents), "contents of {name}");
        }
    }
}

/// Lengths of runs of equal bytes: a compact diff.
fn digest(bytes: &[u8]) -> Vec<(u8, usize)> {
    bytes.chunk_by(|a, b| a == b).map(|run| (run[0], run.len())).collect()
}

fn open(layout: &Layout, resume: bool) -> (Arc<Volume<Pattern>>, NodeId) {
    let overlay = Overlay::open_at(layout, resume).unwrap();
    let base = overlay.lookup(ROOT, OsStr::new("base")).unwrap().unwrap().id;
    let dir = overlay.lookup(base, OsStr::new("5")).unwrap().unwrap().id;
    (Volume::new(overlay, Pattern, Policy::default()), dir)
}

async fn read(
    volume: &Arc<Volume<Pattern>>,
    file: &Arc<crate::overlay::file::FileNode>,
    offset: u64,
    size: usize,
) -> Vec<u8> {
    match volume.begin_read(file, offset, size).unwrap() {
        Ok(data) => data,
        Err(pending) => volume.finish_read(file, pending).await.unwrap(),
    }
}

fn run(ops: &[Op]) {
    let dir = camino_tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut world = World::new(dir.path().as_std_path());
        for op in ops {
            world.apply(op).await;
        }
        world.check_all().await;
        world.settle().await;
        (world.volume, world.dir) = open(&world.layout, false);
        world.check_all().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reads_what_a_plain_directory_would(ops in proptest::collection::vec(op(), 1..40)) {
        run(&ops);
    }
}

/// A daemon is killed between the two steps of a truncation; the next one takes over and the file grows again.
#[tokio::test]
async fn a_torn_truncation_leaves_zeros_where_the_file_grows_again() {
    let dir = camino_tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path().as_std_path());
    world.apply(&Op::Write { file: 0, offset: 0, size: BLOCK, byte: 7 }).await;
    world.settle().await;
    let real = std::fs::File::options().write(true).open(world.layout.upper().join("base/5/10")).unwrap();
    real.set_len(2 * BLOCK as u64).unwrap();
    world.model.get_mut("10").unwrap().truncate(2 * BLOCK);
    world.apply(&Op::Reload { resume: true }).await;
    world.apply(&Op::Write { file: 0, offset: 4 * BLOCK as u64, size: BLOCK, byte: 9 }).await;
    world.apply(&Op::Reload { resume: true }).await;
    world.check_all().await;
}

/// Numbers known to the kernel stay valid after a restart, even for files that no longer have a name.
#[tokio::test]
async fn numbers_outlive_the_daemon() {
    let dir = camino_tempfile::tempdir().unwrap();
    let mut world = World::new(dir.path().as_std_path());
    world.apply(&Op::Create { file: 3 }).await;
    world.apply(&Op::Write { file: 3, offset: 0, size: 10, byte: 42 }).await;
    world.apply(&Op::Write { file: 1, offset: 0, size: 4096, byte: 43 }).await;
    let ids = |world: &World| {
        let number = |name| world.volume.overlay.lookup(world.dir, OsStr::new(name)).unwrap().unwrap().id;
        ["10", "11", "a"].map(number)
    };
    let before = ids(&world);
    world.apply(&Op::Reload { resume: true }).await;
    assert_eq!(ids(&world), before);
    for name in ["10", "11", "a"] {
        world.volume.overlay.unlink(world.dir, OsStr::new(name), false).unwrap();
    }
    world.apply(&Op::Reload { resume: true }).await;
    let expected = [(0, pattern(10, 0)), (1, 43), (2, 42)];
    for (at, byte) in expected {
        let file = world.volume.overlay.file(before[at]).unwrap();
        assert_eq!(read(&world.volume, &file, 0, 1).await, [byte]);
        world.settle().await;
        world.volume.overlay.forget(before[at]);
        assert!(world.volume.overlay.file(before[at]).is_err());
    }
    assert_eq!(std::fs::read_dir(world.layout.orphans()).unwrap().count(), 0);
}
