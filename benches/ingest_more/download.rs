//! A whole layer from a bucket that is a directory, and a plain copy of the same file.

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;

use crate::artifact::{Unit, Validity};
use crate::sample::{Checked, Clock};
use crate::store::Place;
use crate::world::{self, PAGE, Shape, World};

/// Pages of one read when the layer is checked.
const CHECKED_TOGETHER: usize = 1024;

/// A layer in a bucket.
pub struct Bucket {
    world: World,
    /// The layer's object, a file here.
    object: Utf8PathBuf,
    copy: Utf8PathBuf,
}

impl Bucket {
    /// Makes one layer of `volume_mib`, and waits until the bucket has it.
    pub async fn make(dir: &Utf8Path, volume_mib: usize) -> anyhow::Result<Self> {
        let bucket = dir.join("bucket");
        let shape = Shape { layers: 1, pages: ((volume_mib << 20) as u64 / PAGE) as u32 };
        let world = World::make(Place::Directory(bucket.clone()).open("").await?, shape).await?;
        let object = largest(&bucket)?.context("a layer in the bucket")?;
        Ok(Self { world, object, copy: dir.join("copy") })
    }

    /// Opens the timeline on an empty disk, downloads its layer, and compares all of it.
    pub async fn download(&self) -> anyhow::Result<Checked> {
        let ctx = RequestContext::new(TaskKind::LayerDownload, DownloadBehavior::Download);
        let opened = self.world.open(|_| ()).await?;
        let layers = opened.timeline.layer_files();
        let [layer] = layers.as_slice() else { anyhow::bail!("{} layers instead of one", layers.len()) };
        anyhow::ensure!(!layer.is_local(), "the layer is here before it is downloaded");
        let clock = Clock::start();
        layer.download(&ctx).await?;
        let sample = clock.stop(layer.desc().file_size);
        anyhow::ensure!(layer.is_local(), "the layer is not here after it was downloaded");
        let before = world::compared();
        let numbers: Vec<u32> = (0..self.world.shape.total()).collect();
        for some in numbers.chunks(CHECKED_TOGETHER) {
            // Ends the benchmark if a page is missing or different.
            opened.read_all(some).await?;
        }
        let (expected, compared) = (numbers.len() as u64, world::compared() - before);
        opened.close().await;
        let validity = Validity { unit: Unit::Values, expected, seen: compared, compared, different: 0 };
        Ok((sample, validity))
    }

    /// Copies the object through the page cache, and syncs the copy.
    pub fn copy(&self) -> anyhow::Result<Checked> {
        let clock = Clock::start();
        let bytes = std::fs::copy(&self.object, &self.copy)?;
        std::fs::File::open(&self.copy)?.sync_all()?;
        let sample = clock.stop(bytes);
        let mut validity = Validity::of(Unit::Values);
        let (from, to) = (std::fs::read(&self.object)?, std::fs::read(&self.copy)?);
        anyhow::ensure!(from.len() == to.len(), "the copy has another length");
        let pages = from.chunks(PAGE as usize).zip(to.chunks(PAGE as usize));
        pages.for_each(|(from, to)| validity.compare(from == to));
        std::fs::remove_file(&self.copy)?;
        Ok((sample, validity))
    }
}

/// The largest file below `dir`.
fn largest(dir: &Utf8Path) -> anyhow::Result<Option<Utf8PathBuf>> {
    let mut found: Option<(u64, Utf8PathBuf)> = None;
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        for entry in dir.read_dir_utf8()? {
            let entry = entry?;
            let (path, meta) = (entry.path().to_owned(), entry.metadata()?);
            if meta.is_dir() {
                dirs.push(path);
            } else {
                found = found.max(Some((meta.len(), path)));
            }
        }
    }
    Ok(found.map(|(_, path)| path))
}
