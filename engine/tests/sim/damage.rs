//! Damaged, misplaced and stale bytes: each must be reported with its location, and none may yield a wrong value.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use engine::tenant::storage_layer::inspect::LayerInspector;
use engine::tenant::storage_layer::{DeltaLayer, ImageLayer, InMemoryLayer, PersistentLayerDesc, ReconstructState};
use engine::tenant::timeline::manifest::Manifest;
use errors::StorageError;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use super::disk::SimDisk;
use super::samples::{self, Version};
use crate::stack::context;

pub const BLOCK: usize = 4096;
const SECTOR: usize = 512;

type History = (Option<(Lsn, Bytes)>, Vec<(Lsn, WalRecord)>);

/// How to read a file, and what the read must return.
pub enum Content {
    Layer(PersistentLayerDesc, BTreeMap<Key, History>),
    Memory(Box<InMemoryLayer>, BTreeMap<Key, History>),
    Manifest(Box<Manifest>),
}

/// A file to be damaged.
pub struct Subject {
    pub kind: &'static str,
    pub path: Utf8PathBuf,
    pub content: Content,
    /// The range of bytes that is read, in whole blocks where a file has blocks; `None` for all.
    pub part: Option<Range<usize>>,
}

/// Counts of what was tried. Everything was reported.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    pub flips: u64,
    pub truncations: u64,
    pub wiped_sectors: u64,
    pub swaps: u64,
    pub stale_blocks: u64,
    pub misnamed: u64,
    /// Reads that met no damaged byte and returned the correct values.
    pub unharmed_reads: u64,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.flips += other.flips;
        self.truncations += other.truncations;
        self.wiped_sectors += other.wiped_sectors;
        self.swaps += other.swaps;
        self.stale_blocks += other.stale_blocks;
        self.misnamed += other.misnamed;
        self.unharmed_reads += other.unharmed_reads;
    }
}

/// What a read of everything must return.
pub fn histories(versions: &[Version]) -> BTreeMap<Key, History> {
    let mut found: BTreeMap<Key, History> = BTreeMap::new();
    for (key, lsn, value) in versions {
        let history = found.entry(*key).or_default();
        match value {
            Value::Image(image) => *history = (Some((*lsn, image.clone())), Vec::new()),
            Value::WalRecord(record) => history.1.insert(0, (*lsn, record.clone())),
        }
    }
    found
}

fn of_state(state: ReconstructState) -> BTreeMap<Key, History> {
    state.into_histories().into_iter().map(|(key, history)| (key, (history.image, history.records))).collect()
}

/// The contents of the layer file at `path`, which should be `desc`.
pub async fn read_layer(path: &Utf8Path, desc: &PersistentLayerDesc) -> Result<BTreeMap<Key, History>, StorageError> {
    let (mut state, ctx) = (ReconstructState::new(), context());
    let (keys, lsns) = (KeySpace::single(Key::MIN..Key::MAX), Lsn(0)..Lsn(u64::MAX));
    if desc.is_delta {
        let layer = DeltaLayer::open(path, desc, &Arc::default(), &ctx).await?;
        layer.get_values_reconstruct_data(&keys, lsns, &mut state, &ctx).await?;
    } else {
        let layer = ImageLayer::open(path, desc, &Arc::default(), &ctx).await?;
        layer.get_values_reconstruct_data(&keys, lsns, &mut state, &ctx).await?;
    }
    Ok(of_state(state))
}

impl Subject {
    /// The range of bytes to damage.
    pub fn bytes(&self, disk: &SimDisk) -> anyhow::Result<Range<usize>> {
        let len = disk.read(&self.path).context("the file")?.len();
        Ok(self.part.clone().unwrap_or(0..len))
    }

    /// Reads everything. Returns whether all of it is as expected.
    async fn read(&self) -> Result<bool, StorageError> {
        match &self.content {
            Content::Layer(desc, expected) => Ok(read_layer(&self.path, desc).await? == *expected),
            Content::Memory(layer, expected) => {
                let (mut state, ctx) = (ReconstructState::new(), context());
                let (keys, lsns) = (KeySpace::single(Key::MIN..samples::FILLER), Lsn(0)..Lsn(u64::MAX));
                layer.get_values_reconstruct_data(&keys, lsns, &mut state, &ctx).await?;
                Ok(of_state(state) == *expected)
            }
            Content::Manifest(manifest) => {
                let dir = self.path.parent().unwrap_or(Utf8Path::new("/"));
                Ok(Manifest::load(dir, manifest.tenant_shard_id, manifest.timeline_id).await? == **manifest)
            }
        }
    }

    /// Verifies the file with the tool for its kind; files without such a tool are read.
    async fn verify(&self) -> Result<bool, StorageError> {
        match &self.content {
            Content::Layer(..) => {
                LayerInspector::open(&self.path).await?.verify().await?;
                Ok(true)
            }
            _ => self.read().await,
        }
    }

    /// Checks that the file is intact.
    pub async fn check_intact(&self) -> anyhow::Result<()> {
        ensure!(self.verify().await.context("verify")?, "{} does not say what it should", self.kind);
        ensure!(self.read().await.context("read")?, "{} does not say what it should", self.kind);
        Ok(())
    }

    /// Checks that the damage is reported: in any case by verification, at `place` if that is known; and by the read
    /// unless it returns the correct values.
    pub async fn check_damaged(&self, place: Option<usize>, tally: &mut Tally) -> anyhow::Result<()> {
        match self.verify().await {
            Ok(_) => bail!("damage is not noticed"),
            Err(error) => self.check_report(&error, place)?,
        }
        match self.read().await {
            Ok(true) => tally.unharmed_reads += 1,
            Ok(false) => bail!("wrong values are read"),
            Err(error) => self.check_report(&error, place)?,
        }
        Ok(())
    }

    fn check_report(&self, error: &StorageError, place: Option<usize>) -> anyhow::Result<()> {
        let StorageError::Corrupt { path, offset, .. } = error else { bail!("reported as something else: {error}") };
        ensure!(*path == self.path, "another file is accused: {error}");
        // A manifest has a single checksum.
        let exact = !matches!(self.content, Content::Manifest(_));
        if let Some(place) = place.filter(|_| exact) {
            ensure!(*offset as usize / BLOCK == place / BLOCK, "damage at {place} is reported elsewhere: {error}");
        }
        Ok(())
    }
}

/// Flips one bit in every `step`-th byte.
pub async fn flip_bits(disk: &SimDisk, subject: &Subject, step: usize, tally: &mut Tally) -> anyhow::Result<()> {
    for at in subject.bytes(disk)?.step_by(step) {
        let bit = 1 << (at * 5 % 8);
        disk.damage(&subject.path, |bytes| bytes[at] ^= bit);
        let place = format!("{}: bit of byte {at} flipped", subject.kind);
        subject.check_damaged(Some(at), tally).await.context(place)?;
        disk.damage(&subject.path, |bytes| bytes[at] ^= bit);
        tally.flips += 1;
    }
    subject.check_intact().await
}

/// Truncates the file at every sector, and overwrites every sector with zeros and with ones.
pub async fn cut_and_wipe(disk: &SimDisk, subject: &Subject, tally: &mut Tally) -> anyhow::Result<()> {
    let whole = disk.read(&subject.path).context("the file")?;
    let part = subject.bytes(disk)?;
    for len in part.clone().step_by(SECTOR) {
        disk.damage(&subject.path, |bytes| bytes.truncate(len));
        subject.check_damaged(None, tally).await.with_context(|| format!("{}: cut at {len}", subject.kind))?;
        disk.damage(&subject.path, |bytes| bytes.extend_from_slice(&whole[len..]));
        tally.truncations += 1;
    }
    for start in part.clone().step_by(SECTOR) {
        let end = part.end.min(start + SECTOR);
        for fill in [0x00, 0xFF] {
            if whole[start..end].iter().all(|byte| *byte == fill) {
                continue;
            }
            disk.damage(&subject.path, |bytes| bytes[start..end].fill(fill));
            let place = format!("{}: sector at {start} filled with {fill:#x}", subject.kind);
            subject.check_damaged(Some(start), tally).await.context(place)?;
            disk.damage(&subject.path, |bytes| bytes[start..end].copy_from_slice(&whole[start..end]));
            tally.wiped_sectors += 1;
        }
    }
    subject.check_intact().await
}

/// Replaces block `to` of the subject by `block`, checks, and undoes it. Skips equal blocks. Returns whether it did.
async fn transplant(
    disk: &SimDisk,
    subject: &Subject,
    to: usize,
    block: &[u8],
    tally: &mut Tally,
) -> anyhow::Result<bool> {
    let place = to * BLOCK..to * BLOCK + BLOCK;
    let old = disk.read(&subject.path).context("the file")?[place.clone()].to_vec();
    if old == block {
        return Ok(false);
    }
    disk.damage(&subject.path, |bytes| bytes[place.clone()].copy_from_slice(block));
    subject.check_damaged(None, tally).await?;
    disk.damage(&subject.path, |bytes| bytes[place].copy_from_slice(&old));
    Ok(true)
}

/// Puts every block of every file into every other place of the same and the other files, as a misdirected write
/// does.
pub async fn misplace(disk: &SimDisk, subjects: &[&Subject], tally: &mut Tally) -> anyhow::Result<()> {
    let files: Vec<Vec<u8>> = subjects.iter().filter_map(|subject| disk.read(&subject.path)).collect();
    for (number, subject) in subjects.iter().enumerate() {
        for to in 0..files[number].len() / BLOCK {
            for (source, bytes) in files.iter().enumerate() {
                for (from, block) in bytes.as_chunks::<BLOCK>().0.iter().enumerate() {
                    let done = transplant(disk, subject, to, block, tally).await.with_context(|| {
                        format!("block {to} of {} replaced by {from} of {}", subject.kind, subjects[source].kind)
                    });
                    tally.swaps += u64::from(done?);
                }
            }
        }
        subject.check_intact().await?;
    }
    Ok(())
}

/// Puts each block of an `older` file into the same place of the subject, as a lost write does.
pub async fn keep_stale(disk: &SimDisk, subject: &Subject, older: &[u8], tally: &mut Tally) -> anyhow::Result<()> {
    let blocks = disk.read(&subject.path).context("the file")?.len() / BLOCK;
    for (at, block) in older.as_chunks::<BLOCK>().0.iter().enumerate().take(blocks) {
        let done = transplant(disk, subject, at, block, tally).await;
        tally.stale_blocks +=
            u64::from(done.with_context(|| format!("block {at} of {} is of an older file", subject.kind))?);
    }
    subject.check_intact().await
}

/// Serves each layer under the name of each other: the file is intact, but it is the wrong one.
pub async fn misname(subjects: &[&Subject], tally: &mut Tally) -> anyhow::Result<()> {
    for (wanted, found) in subjects.iter().flat_map(|wanted| subjects.iter().map(move |found| (wanted, found))) {
        let Content::Layer(desc, _) = &wanted.content else { continue };
        if wanted.path == found.path || !matches!(found.content, Content::Layer(..)) {
            continue;
        }
        match read_layer(&found.path, desc).await {
            Err(StorageError::Corrupt { path, .. }) if path == found.path => tally.misnamed += 1,
            other => bail!("{} taken for {}: {other:?}", found.kind, wanted.kind),
        }
    }
    Ok(())
}
