//! The files of the journal: of one length, filled with zeros once, and used again under later numbers.

use std::sync::Arc;
use std::time::Duration;

use camino::{Utf8Path, Utf8PathBuf};
use errors::StorageError;
use layer_format::FormatError;
use tokio_util::sync::CancellationToken;
use virtual_file::fs::{fsync_dir, rename, unlink};
use virtual_file::{AlignedBuf, OpenMode, VirtualFile};

use crate::batch::{BLOCK, BatchHeader, Frame, NoSegment, SegmentHeader, parse_segment_header, segment_header};

/// What the names of files that are used again begin with.
const SPARE: &str = "spare-";
/// Bytes that are read at once.
const CHUNK: usize = 1 << 20;
/// Bytes that are filled with zeros at once, and the pause after them: batches that are written meanwhile wait for no
/// more than these.
const FILLED: usize = 256 << 10;
const FILL_PAUSE: Duration = Duration::from_millis(4);

/// Where the segment of a number is.
pub(crate) fn path(dir: &Utf8Path, number: u64) -> Utf8PathBuf {
    dir.join(format!("{number:016X}"))
}

/// The number of the segment with this file name.
pub(crate) fn number_of(name: &str) -> Option<u64> {
    (name.len() == 16).then(|| u64::from_str_radix(name, 16).ok()).flatten()
}

/// Sets the file of a segment aside that nothing needs any more. Should this be undone by a crash, it is found once
/// more, and again not needed.
pub(crate) async fn set_aside(dir: &Utf8Path, number: u64) -> Result<Utf8PathBuf, StorageError> {
    let spare = dir.join(format!("{SPARE}{number:016X}"));
    rename(&path(dir, number), &spare).await?;
    Ok(spare)
}

/// Removes what an earlier process has set aside, or was about to make. What else there is, such as `lost+found` where
/// a disk of its own is mounted, is not the journal's.
pub(crate) async fn remove_spares(dir: &Utf8Path, names: &[String]) -> Result<(), StorageError> {
    for name in names.iter().filter(|name| name.starts_with(SPARE)) {
        unlink(&dir.join(name)).await?;
    }
    Ok(())
}

/// Makes a file of `len` bytes that can become a segment: with zeros, so that later writes change no metadata. Slowly,
/// until `hurry` is cancelled.
pub(crate) async fn make_spare(
    dir: &Utf8Path,
    number: u64,
    len: u32,
    hurry: &CancellationToken,
) -> Result<Utf8PathBuf, StorageError> {
    let path = dir.join(format!("{SPARE}new-{number:016X}"));
    // One that could not be made a segment.
    let _ = unlink(&path).await;
    let file = VirtualFile::open(&path, OpenMode::CreateNew).await?;
    let filled = fill(&file, len, hurry).await;
    if filled.is_err() {
        // Whatever keeps it from going will be met again by the next attempt.
        let _ = unlink(&path).await;
    }
    filled.map(|()| path)
}

async fn fill(file: &VirtualFile, len: u32, hurry: &CancellationToken) -> Result<(), StorageError> {
    let mut zeros = AlignedBuf::with_capacity(FILLED);
    zeros.extend_with_zeros(FILLED);
    let zeros = Arc::new(zeros);
    for offset in (0..len as usize).step_by(FILLED) {
        if offset > 0 {
            let _ = env::clock::timeout(FILL_PAUSE, hurry.cancelled()).await;
        }
        file.write_part_at(offset as u64, &zeros, FILLED.min(len as usize - offset)).await?;
    }
    file.sync().await
}

/// Makes the file at `spare` a segment, and opens it.
pub(crate) async fn begin(
    dir: &Utf8Path,
    spare: &Utf8Path,
    segment: &SegmentHeader,
) -> Result<VirtualFile, StorageError> {
    // It must not be found under its former number any more once its header is another's.
    fsync_dir(dir).await?;
    let file = VirtualFile::open(spare, OpenMode::Update).await?;
    let mut header = AlignedBuf::with_capacity(BLOCK);
    header.extend_from_slice(&segment_header(segment));
    file.write_at(0, header).await?;
    file.sync().await?;
    file.rename(&path(dir, segment.number)).await?;
    fsync_dir(dir).await?;
    Ok(file)
}

/// A batch that was found in a segment, and where it begins.
pub(crate) struct Found {
    pub(crate) offset: u32,
    pub(crate) number: u64,
    pub(crate) frames: Vec<Frame>,
}

/// What a segment was found to be.
pub(crate) enum Scanned {
    /// Its batches, in order. Of those that are damaged nothing is known but that later ones were found.
    Segment(Vec<Found>),
    /// It was about to be used again under another number: nothing of it is needed.
    Spare,
}

/// Reads a segment. A batch that is not whole and has none behind it was never told of: it is as if it was not there.
pub(crate) async fn scan(dir: &Utf8Path, number: u64) -> Result<Scanned, StorageError> {
    let path = path(dir, number);
    let bytes = read_all(&path).await?;
    let corrupt =
        |error: FormatError| StorageError::Corrupt { path: path.clone(), offset: 0, reason: error.to_string() };
    let segment = header_of(&bytes).map_err(|error| match error {
        // Nothing is taken for damage, and given up, because another version wrote it.
        NoSegment::Version(_) => StorageError::Invalid(format!(
            "{path}: {error}. Start the version that wrote it, stop it once everything is uploaded, and remove the \
             journal's directory before this one starts"
        )),
        NoSegment::Damaged(error) => corrupt(error),
    })?;
    if segment.number != number {
        return Ok(Scanned::Spare);
    }
    batches_of(&bytes, &segment).map(Scanned::Segment).map_err(corrupt)
}

/// The header of the segment that a file has.
pub(crate) fn header_of(bytes: &[u8]) -> Result<SegmentHeader, NoSegment> {
    parse_segment_header(bytes.get(..BLOCK).ok_or_else(|| FormatError("the file has no header".to_owned()))?)
}

/// The batches of a segment, its header included, that are whole.
pub(crate) fn batches_of(bytes: &[u8], segment: &SegmentHeader) -> Result<Vec<Found>, FormatError> {
    let (mut found, mut offset) = (Vec::new(), BLOCK);
    while let Some(rest) = bytes.get(offset..).filter(|rest| !rest.is_empty()) {
        let header = BatchHeader::parse(rest, segment.number);
        let batch = header.and_then(|header| Some((header, header.frames(rest, segment).ok()?)));
        let Some((header, frames)) = batch else {
            offset += BLOCK;
            continue;
        };
        let at = u32::try_from(offset).map_err(|_| FormatError(format!("batch at offset {offset}")))?;
        found.push(Found { offset: at, number: header.number, frames });
        offset += header.padded();
    }
    Ok(found)
}

async fn read_all(path: &Utf8Path) -> Result<Vec<u8>, StorageError> {
    let file = VirtualFile::open(path, OpenMode::Read).await?;
    let size = usize::try_from(file.size()?).unwrap_or(usize::MAX);
    let mut all = Vec::with_capacity(size);
    while all.len() < size {
        let read = read_at(&file, all.len() as u64, CHUNK.min(size - all.len())).await?;
        if read.is_empty() {
            break;
        }
        all.extend_from_slice(&read);
    }
    Ok(all)
}

/// Whole blocks of a file: those with the `len` bytes from `offset` on.
pub(crate) async fn read_at(file: &VirtualFile, offset: u64, len: usize) -> Result<AlignedBuf, StorageError> {
    let read = file.start_read(offset, len.next_multiple_of(BLOCK)).await;
    read.map_err(|source| file.error("read", offset, source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_file_is_filled_slowly_until_it_is_needed() {
        let dir = camino_tempfile::tempdir().unwrap();
        let (len, hurry) = (8 * FILLED + 4096, CancellationToken::new());
        // This clock goes on only where something waits for it.
        let begun = tokio::time::Instant::now();
        let path = make_spare(dir.path(), 1, len as u32, &hurry).await.unwrap();
        assert!(begun.elapsed() >= 8 * FILL_PAUSE, "{:?}", begun.elapsed());
        hurry.cancel();
        let begun = tokio::time::Instant::now();
        let other = make_spare(dir.path(), 2, len as u32, &hurry).await.unwrap();
        assert_eq!(begun.elapsed(), Duration::ZERO, "it waited though it was needed");
        for path in [path, other] {
            assert!(std::fs::read(path).unwrap() == vec![0; len]);
        }
    }

    #[tokio::test]
    async fn what_is_not_the_journals_stays() {
        let dir = camino_tempfile::tempdir().unwrap();
        let dir = dir.path();
        std::fs::create_dir(dir.join("lost+found")).unwrap();
        let mut names = vec!["lost+found".to_owned()];
        for name in ["notes", "0000000000000001", "spare-0000000000000001", "spare-new-0000000000000002"] {
            std::fs::write(dir.join(name), name).unwrap();
            names.push(name.to_owned());
        }
        remove_spares(dir, &names).await.unwrap();
        let left = |name: &&String| dir.join(name).exists();
        assert_eq!(names.iter().filter(left).collect::<Vec<_>>(), ["lost+found", "notes", "0000000000000001"]);
    }
}
