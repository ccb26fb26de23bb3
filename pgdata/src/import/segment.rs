//! A large segment file of a relation, written to layers of its own while it arrives.

use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::key::rel_block_key;
use pageserver_api::reltag::{BlockNumber, RelTag};
use postgres_formats::BLCKSZ;
use postgres_formats::page::{PageBytes, PageRef};
use utils::lsn::Lsn;

use super::sink::{FinishedLayer, ImageSink, Target};
use datadir::{RELATION_SEGMENT_BLOCKS, check_page};
use errors::StorageError;

/// The result of a complete segment file.
pub(super) struct Ready {
    pub(super) layers: Vec<FinishedLayer>,
    /// The first page whose checksum is wrong; it counts only if the cluster has checksums.
    pub(super) mismatch: Option<StorageError>,
}

/// A segment that is being received.
pub(super) struct Segment {
    path: Utf8PathBuf,
    rel: RelTag,
    first: BlockNumber,
    next: BlockNumber,
    sink: ImageSink,
    backup_start: Lsn,
    /// The start of a page that is not yet complete.
    partial: Vec<u8>,
    /// As in [`Ready`]: whether the cluster has checksums is not yet known.
    mismatch: Option<StorageError>,
}

impl Segment {
    /// Segment `number` of `rel`, with `blocks` blocks, for the file `path`. `None` if it is too long.
    pub(super) fn new(target: Target, path: &Utf8Path, rel: RelTag, number: u32, blocks: u32) -> Option<Self> {
        let first = number.checked_mul(RELATION_SEGMENT_BLOCKS).filter(|_| blocks <= RELATION_SEGMENT_BLOCKS)?;
        let keys = rel_block_key(rel, first)..rel_block_key(rel, first.checked_add(blocks)?);
        let backup_start = target.lsn;
        let sink = ImageSink::new(target, keys);
        let partial = Vec::with_capacity(BLCKSZ);
        Some(Self { path: path.to_owned(), rel, first, next: first, sink, backup_start, partial, mismatch: None })
    }

    /// Takes the next bytes.
    pub(super) async fn write(&mut self, mut bytes: Bytes) -> Result<(), StorageError> {
        if !self.partial.is_empty() {
            let part = bytes.split_to(bytes.len().min(BLCKSZ - self.partial.len()));
            self.partial.extend_from_slice(&part);
            if self.partial.len() < BLCKSZ {
                return Ok(());
            }
            let page = std::mem::replace(&mut self.partial, Vec::with_capacity(BLCKSZ));
            self.page(Bytes::from(page)).await?;
        }
        while bytes.len() >= BLCKSZ {
            self.page(bytes.split_to(BLCKSZ)).await?;
        }
        self.partial.extend_from_slice(&bytes);
        Ok(())
    }

    /// Takes the next page, which must be whole.
    async fn page(&mut self, bytes: Bytes) -> Result<(), StorageError> {
        let Ok(page) = <&PageBytes>::try_from(&bytes[..]) else {
            return Err(StorageError::Internal(format!("{}: a page of {} bytes", self.path, bytes.len())));
        };
        let blkno = self.next;
        // A page written after the backup's start may be torn; the WAL has it whole.
        if self.mismatch.is_none() && PageRef::new(page).lsn() <= self.backup_start.0 {
            let offset = u64::from(blkno - self.first) * BLCKSZ as u64;
            self.mismatch = check_page(page, blkno, &self.path, offset).err();
        }
        self.sink.put_bytes(rel_block_key(self.rel, blkno), bytes).await?;
        self.next += 1;
        Ok(())
    }

    /// Layers finished so far.
    pub(super) fn layers(&self) -> u64 {
        self.sink.layers()
    }

    /// Ends the segment: its number of pages, and its layers.
    pub(super) async fn finish(self) -> Result<(u64, Ready), StorageError> {
        let ready = Ready { layers: self.sink.finish().await?, mismatch: self.mismatch };
        Ok((u64::from(self.next - self.first), ready))
    }
}
