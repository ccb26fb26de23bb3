//! Sample files of every kind, with their expected contents.

use anyhow::Context;
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use engine::config::PageServerConf;
use engine::l0_flush::{L0FlushConfig, L0FlushGlobalState};
use engine::tenant::storage_layer::{
    DeltaLayerWriter, ImageLayerWriter, InMemoryLayer, LayerIdentity, PersistentLayerDesc,
};
use engine::tenant::timeline::manifest::{Kept, LayerEntry, Manifest};
use pageserver_api::key::Key;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use tokio_util::sync::CancellationToken;
use utils::lsn::Lsn;
use utils::sync::gate::Gate;
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::random::Random;
use crate::stack::{IMPORT_LSN, config, context, new_timeline};

/// A version of a key.
pub type Version = (Key, Lsn, Value);

/// Creates files in the directory of one timeline.
pub struct Maker {
    pub conf: &'static PageServerConf,
    new: engine::tenant::timeline::NewTimeline,
    random: Random,
}

const KEYS: u32 = 24;

/// A key above those of [`Maker::versions`].
pub const FILLER: Key = Key { field1: 1, field2: 0, field3: 0, field4: 0, field5: 0, field6: 0 };

fn key(number: u32) -> Key {
    Key { field1: 0, field2: 1663, field3: 5, field4: 16384 + number % 3, field5: 0, field6: number }
}

impl Maker {
    /// Creates the directory. A disk must be mounted at the root.
    pub async fn new(root: &Utf8Path, seed: u64) -> anyhow::Result<Self> {
        env::random::seed_thread(Some(seed));
        let new = new_timeline();
        let conf = config(root, 1 << 30);
        engine::tenant::timeline::Timeline::prepare(conf, new.tenant_shard_id, new.timeline_id).await?;
        Ok(Self { conf, new, random: Random::new(seed) })
    }

    pub fn dir(&self) -> Utf8PathBuf {
        self.conf.timeline_path(&self.new.tenant_shard_id, &self.new.timeline_id)
    }

    /// About `bytes` bytes of values in LSN order: an image of each key, followed by changes to all of them, so that
    /// a read of everything needs every value.
    pub fn versions(&mut self, bytes: usize) -> Vec<Version> {
        let (mut versions, mut total, mut lsn) = (Vec::new(), 0, IMPORT_LSN);
        for number in 0.. {
            let len = 200 + self.random.below(1500) as usize;
            let content = Bytes::from(self.random.bytes(len));
            let (key, value) = if number < KEYS {
                (key(number), Value::Image(content))
            } else {
                let record = WalRecord::Postgres { will_init: false, block_id: 0, record: content };
                (key(self.random.below(u64::from(KEYS)) as u32), Value::WalRecord(record))
            };
            lsn += 8;
            total += len;
            if total > bytes && number >= KEYS {
                break;
            }
            versions.push((key, lsn, value));
        }
        versions
    }

    /// The LSN range of a layer with `versions`.
    fn lsn_range(versions: &[Version]) -> std::ops::Range<Lsn> {
        let end = versions.iter().map(|(_, lsn, _)| *lsn).max().unwrap_or(IMPORT_LSN);
        IMPORT_LSN + 1..end + 1
    }

    /// An in-memory layer with `versions`.
    pub async fn in_memory(&self, versions: &[Version]) -> anyhow::Result<InMemoryLayer> {
        let (gate, cancel) = (Gate::default(), CancellationToken::new());
        let start = Self::lsn_range(versions).start;
        let (tenant, timeline) = (self.new.tenant_shard_id, self.new.timeline_id);
        let layer = InMemoryLayer::create(self.conf, timeline, tenant, start, &gate, &cancel, &context()).await?;
        for (key, lsn, value) in versions {
            let mut batch = SerializedValueBatch::default();
            batch.put_key(key, *lsn, value)?;
            layer.put_batch(batch, &context()).await?;
        }
        Ok(layer)
    }

    /// Appends `bytes` bytes of one more key to `versions`.
    pub fn fill_up(&mut self, versions: &mut Vec<Version>, bytes: usize) {
        const LEN: usize = 64 << 10;
        let last = versions.iter().map(|(_, lsn, _)| *lsn).max().unwrap_or(IMPORT_LSN);
        for number in 1..=bytes / LEN {
            let image = Value::Image(Bytes::from(self.random.bytes(LEN)));
            versions.push((FILLER, last + 8 * number as u64, image));
        }
    }

    /// A delta layer file sealed from an in-memory layer.
    pub async fn sealed(&self, versions: &[Version]) -> anyhow::Result<(PersistentLayerDesc, Utf8PathBuf)> {
        let layer = self.in_memory(versions).await?;
        layer.freeze(Self::lsn_range(versions).end).await;
        let limit = L0FlushGlobalState::new(L0FlushConfig::Direct { max_concurrency: std::num::NonZeroUsize::MIN });
        let (gate, cancel) = (Gate::default(), CancellationToken::new());
        layer.write_to_disk(&context(), None, limit.inner(), &gate, cancel).await?.context("a layer with values")
    }

    /// A delta layer file written in key order.
    pub async fn written(&self, versions: &[Version]) -> anyhow::Result<(PersistentLayerDesc, Utf8PathBuf)> {
        let (tenant, timeline) = (self.new.tenant_shard_id, self.new.timeline_id);
        let (keys, lsns) = (key(0)..Key::MAX, Self::lsn_range(versions));
        let mut writer = DeltaLayerWriter::create(self.conf, timeline, tenant, keys, lsns, &context()).await?;
        let mut sorted: Vec<&Version> = versions.iter().collect();
        sorted.sort_by_key(|(key, lsn, _)| (*key, *lsn));
        for (key, lsn, value) in sorted {
            writer.put_value(*key, *lsn, value).await?;
        }
        Ok(writer.finish(&context()).await?)
    }

    /// An image layer file of the images among `versions`.
    pub async fn image(&self, versions: &[Version]) -> anyhow::Result<(PersistentLayerDesc, Utf8PathBuf)> {
        let (tenant, timeline) = (self.new.tenant_shard_id, self.new.timeline_id);
        let (keys, at) = (Key::MIN..Key::MAX, IMPORT_LSN);
        let mut writer = ImageLayerWriter::create(self.conf, timeline, tenant, keys, at, &context()).await?;
        for (key, _, value) in versions {
            if let Value::Image(image) = value {
                writer.put_image(*key, image).await?;
            }
        }
        Ok(writer.finish(&context()).await?)
    }

    /// Versions for an image layer with about `bytes` incompressible bytes, in key order.
    pub fn images(&mut self, bytes: usize) -> Vec<Version> {
        let mut images = Vec::new();
        let mut total = 0;
        for number in 0.. {
            let noise = 100 + self.random.below(6000) as usize;
            let mut image = self.random.bytes(noise);
            image.resize(noise + self.random.below(4000) as usize, 7);
            total += noise;
            if total > bytes {
                break;
            }
            let key = Key { field1: 0, field2: 1663, field3: 5, field4: 16384, field5: 0, field6: number };
            images.push((key, IMPORT_LSN, Value::Image(Bytes::from(image))));
        }
        images
    }

    /// A stored manifest of about `bytes` bytes.
    pub async fn manifest(&self, bytes: usize) -> anyhow::Result<Manifest> {
        let entry = |number: usize| {
            let start = IMPORT_LSN + 8 * number as u64;
            let lsns = (start, start + 8);
            let identity = LayerIdentity { file_id: start.0, tail_offset: 4096, filter_blocks: 0 };
            LayerEntry {
                is_delta: true,
                keys: (Key::MIN, Key::MAX),
                lsns,
                generation: 1,
                id_in_name: true,
                file_size: 4096,
                identity,
                visible: None,
            }
        };
        let manifest = Manifest {
            tenant_shard_id: self.new.tenant_shard_id,
            timeline_id: self.new.timeline_id,
            generation: 0,
            in_bucket: false,
            deleted: false,
            wal_source: None,
            origin: self.new.origin,
            wal_log_hints_changes: Vec::new(),
            disk_consistent_lsn: IMPORT_LSN + bytes as u64,
            prev_record_lsn: IMPORT_LSN,
            edition: 0,
            gc_cutoff: Lsn::INVALID,
            retained: Vec::new(),
            layers: (0..bytes / 87).map(entry).collect(),
            kept: Kept::default(),
            detached: false,
        };
        manifest.store(&self.dir()).await?;
        Ok(manifest)
    }
}
