//! Copies all relations to the local disk, for a compute without the file system.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use futures_util::{StreamExt, TryStreamExt, stream};

use super::{LifecycleError, Result, io_error};
use crate::source::{PageSource, RelFork, RelationFile};
use crate::{BLOCK, SEGMENT_BLOCKS};

/// Maximum number of concurrent ranges.
const PARALLEL: usize = 16;
/// Blocks per range: 1 MiB.
const RANGE: u32 = 128;

/// Blocks of one file.
struct Range {
    path: PathBuf,
    rel: RelFork,
    first: u32,
    count: u32,
}

/// Writes the relation files below `data`. Returns the number of blocks.
pub(super) async fn all(source: &impl PageSource, files: &[RelationFile], data: &Path) -> Result<u64> {
    for file in files {
        make_segments(file, data)?;
    }
    let ranges = files.iter().flat_map(|file| ranges(file, data));
    let copies = stream::iter(ranges.map(|range| copy(source, range))).buffer_unordered(PARALLEL);
    let blocks: u64 = copies.try_fold(0, async |sum, count| Ok(sum + u64::from(count))).await?;
    let synced = File::open(data).and_then(|dir| Ok(rustix::fs::syncfs(dir)?));
    synced.map_err(io_error(data))?;
    Ok(blocks)
}

fn segment_path(file: &RelationFile, data: &Path, segment: u32) -> PathBuf {
    if segment == 0 { data.join(&file.path) } else { data.join(format!("{}.{segment}", file.path)) }
}

/// Creates the files, sparse and at their final length.
fn make_segments(file: &RelationFile, data: &Path) -> Result<()> {
    for segment in 0..=file.blocks.saturating_sub(1) / SEGMENT_BLOCKS {
        let path = segment_path(file, data, segment);
        let blocks = (file.blocks - segment * SEGMENT_BLOCKS).min(SEGMENT_BLOCKS);
        let made = File::options().write(true).create_new(true).mode(0o600).open(&path);
        made.and_then(|made| made.set_len(u64::from(blocks) * BLOCK as u64)).map_err(io_error(&path))?;
    }
    Ok(())
}

/// No range spans two segments: the length of a segment is a multiple of a range's.
fn ranges(file: &RelationFile, data: &Path) -> impl Iterator<Item = Range> {
    (0..file.blocks).step_by(RANGE as usize).map(move |first| Range {
        path: segment_path(file, data, first / SEGMENT_BLOCKS),
        rel: file.rel,
        first,
        count: RANGE.min(file.blocks - first),
    })
}

async fn copy(source: &impl PageSource, range: Range) -> Result<u32> {
    let Range { path, rel, first, count } = range;
    let mut bytes = vec![0; count as usize * BLOCK];
    source.read_blocks(rel, first, count, &mut bytes).await?;
    let at = u64::from(first % SEGMENT_BLOCKS) * BLOCK as u64;
    let written = env::spawn::blocking(move || {
        let file = File::options().write(true).open(&path).map_err(io_error(&path))?;
        file.write_all_at(&bytes, at).map_err(io_error(&path))
    });
    let broke_off = |error| LifecycleError::Io { path: "a copy".to_owned(), source: io::Error::other(error) };
    written.await.map_err(broke_off)??;
    Ok(count)
}
