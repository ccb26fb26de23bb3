//! Image layers of pages that compress and of pages that do not, and what compressing them costs by itself.

use std::ops::Range;
use std::sync::Arc;

use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::storage_layer::{ImageLayer, ImageLayerWriter, ReconstructState};
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::shard::TenantShardId;
use serde_json::{Value, json};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::artifact::{Unit, Validity};
use crate::sample::{Checked, Clock};
use crate::world::{self, PAGE};

const LSN: Lsn = Lsn(0x1000);
/// Of each row of a page that compresses, so many bytes are like those of any other row.
const ROW: usize = 64;
const ROW_SAME: usize = 36;
/// Pages of one read when the layer is checked.
const CHECKED_TOGETHER: u32 = 1024;
/// As the writer has it: with this level, and only if it saves an eighth.
const ZSTD_LEVEL: i32 = 1;
const WORTH: usize = (PAGE - PAGE / 8) as usize;

/// What the pages are like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Random bytes.
    Random,
    /// Rows that are partly alike, as in most tables: to less than a half, more than a third.
    Rows,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Random => "random",
            Kind::Rows => "rows",
        }
    }

    fn page(self, number: u32) -> Vec<u8> {
        let mut page = world::page(number);
        if self == Kind::Rows {
            page.chunks_mut(ROW).for_each(|row| row[..ROW_SAME].fill(b'a'));
        }
        page
    }
}

/// The pages of a layer, made before the clock runs.
pub struct Pages {
    kind: Kind,
    bytes: Vec<u8>,
}

impl Pages {
    pub fn new(kind: Kind, volume_mib: usize) -> Self {
        let count = (volume_mib << 20) / PAGE as usize;
        Self { kind, bytes: (0..count as u32).flat_map(|number| kind.page(number)).collect() }
    }

    fn count(&self) -> u32 {
        (self.bytes.len() / PAGE as usize) as u32
    }

    fn all(&self) -> impl Iterator<Item = (Key, &[u8])> {
        (0..).map(key).zip(self.bytes.chunks(PAGE as usize))
    }

    pub fn describe(&self, kind: &str) -> Value {
        json!({ "kind": kind, "pages": self.kind.name() })
    }

    /// Writes them to a layer, and compares all of it.
    pub async fn write(&self, conf: &'static PageServerConf) -> anyhow::Result<Checked> {
        let (tenant, timeline) = (TenantShardId::unsharded(TenantId::generate()), TimelineId::generate());
        let ctx = RequestContext::new(TaskKind::DebugTool, DownloadBehavior::Error);
        std::fs::create_dir_all(conf.timeline_path(&tenant, &timeline))?;
        let clock = Clock::start();
        let keys = key(0)..key(self.count());
        let mut writer = ImageLayerWriter::create(conf, timeline, tenant, keys, LSN, &ctx).await?;
        for (key, page) in self.all() {
            writer.put_image(key, page).await?;
        }
        let (desc, path) = writer.finish(&ctx).await?;
        let sample = clock.stop(self.bytes.len() as u64).with("stored_bytes", desc.file_size);
        let layer = ImageLayer::open(&path, &desc, &Arc::default(), &ctx).await?;
        let mut validity = Validity::of(Unit::Values);
        for first in (0..self.count()).step_by(CHECKED_TOGETHER as usize) {
            self.check(&layer, first..self.count().min(first + CHECKED_TOGETHER), &mut validity, &ctx).await?;
        }
        std::fs::remove_file(path)?;
        Ok((sample, validity))
    }

    async fn check(
        &self,
        layer: &ImageLayer,
        numbers: Range<u32>,
        validity: &mut Validity,
        ctx: &RequestContext,
    ) -> anyhow::Result<()> {
        let keys = KeySpace::single(key(numbers.start)..key(numbers.end));
        let mut state = ReconstructState::new();
        layer.get_values_reconstruct_data(&keys, LSN..LSN + 1, &mut state, ctx).await?;
        let mut found = state.into_histories();
        let of_numbers = self.all().skip(numbers.start as usize).take(numbers.len());
        for (key, page) in of_numbers {
            match found.remove(&key).and_then(|history| history.image) {
                Some((lsn, image)) => validity.compare(lsn == LSN && image == page),
                None => validity.missing(),
            }
        }
        Ok(())
    }

    /// Compresses them as the writer does, and does nothing else.
    pub fn compress(&self) -> anyhow::Result<Checked> {
        let (mut compressor, mut decompressor) =
            (zstd::bulk::Compressor::new(ZSTD_LEVEL)?, zstd::bulk::Decompressor::new()?);
        let (mut into, mut stored, mut validity) = (vec![0; WORTH], 0, Validity::of(Unit::Values));
        let clock = Clock::start();
        for (_, page) in self.all() {
            stored += compressor.compress_to_buffer(page, &mut into[..]).unwrap_or(page.len()) as u64;
        }
        let sample = clock.stop(self.bytes.len() as u64).with("stored_bytes", stored);
        for (_, page) in self.all() {
            let is_same = match compressor.compress_to_buffer(page, &mut into[..]) {
                Ok(len) => decompressor.decompress(&into[..len], PAGE as usize)? == page,
                Err(_) => self.kind == Kind::Random,
            };
            validity.compare(is_same);
        }
        Ok((sample, validity))
    }
}

fn key(block: u32) -> Key {
    Key { field2: 1663, field3: 5, field4: 16384, field6: block, ..Key::MIN }
}
