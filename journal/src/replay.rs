//! Reads a timeline's WAL back.

use std::collections::VecDeque;

use bytes::Bytes;
use camino::Utf8PathBuf;
use errors::StorageError;
use utils::lsn::Lsn;
use virtual_file::{OpenMode, VirtualFile};

use crate::batch::{BLOCK, BatchHeader, SegmentHeader, parse_segment_header};
use crate::index::Piece;
use crate::segment::{self, read_at};

/// WAL of one timeline, without a gap, as it is in the journal.
#[derive(Debug)]
pub struct Replay {
    dir: Utf8PathBuf,
    pieces: VecDeque<Piece>,
    open: Option<(SegmentHeader, VirtualFile)>,
    /// The batch that was read last: its segment, where it begins, and what it is.
    batch: Option<(u64, u32, Bytes)>,
}

impl Replay {
    pub(crate) fn new(dir: Utf8PathBuf, pieces: VecDeque<Piece>) -> Self {
        Self { dir, pieces, open: None, batch: None }
    }

    /// The LSN behind what is left; `None` if nothing is.
    pub fn end(&self) -> Option<Lsn> {
        self.pieces.back().map(Piece::end)
    }

    /// The next bytes, and the LSN of the first of them.
    ///
    /// # Errors
    /// Those of the disk; damage.
    pub async fn next(&mut self) -> Result<Option<(Lsn, Bytes)>, StorageError> {
        let Some(piece) = self.pieces.pop_front() else { return Ok(None) };
        let batch = self.read(&piece).await?;
        let wal = piece.of(&batch).map(|wal| batch.slice_ref(wal));
        let wal = wal.ok_or_else(|| self.damaged(&piece, "the batch is shorter than it was"))?;
        Ok(Some((piece.start, wal)))
    }

    /// The batch of a piece.
    async fn read(&mut self, piece: &Piece) -> Result<Bytes, StorageError> {
        let at = (piece.segment, piece.batch);
        if let Some((segment, offset, batch)) = &self.batch
            && (*segment, *offset) == at
        {
            return Ok(batch.clone());
        }
        let (header, file) = match self.open.take().filter(|(header, _)| header.number == piece.segment) {
            Some(open) => open,
            None => self.open_segment(piece).await?,
        };
        let first = read_at(&file, u64::from(piece.batch), BLOCK).await?;
        let found = BatchHeader::parse(&first, piece.segment);
        let found = found.ok_or_else(|| self.damaged(piece, "there is no batch any more"))?;
        let bytes = match found.padded() > BLOCK {
            true => read_at(&file, u64::from(piece.batch), found.padded()).await?,
            false => first,
        };
        found.frames(&bytes, &header).map_err(|error| self.damaged(piece, &error.to_string()))?;
        let batch = Bytes::copy_from_slice(&bytes);
        self.open = Some((header, file));
        self.batch = Some((piece.segment, piece.batch, batch.clone()));
        Ok(batch)
    }

    async fn open_segment(&self, piece: &Piece) -> Result<(SegmentHeader, VirtualFile), StorageError> {
        let file = VirtualFile::open(&segment::path(&self.dir, piece.segment), OpenMode::Read).await?;
        let block = read_at(&file, 0, BLOCK).await?;
        let header = parse_segment_header(&block).map_err(|error| self.damaged(piece, &error.to_string()))?;
        if header.number != piece.segment {
            return Err(self.damaged(piece, "the file is another segment's"));
        }
        Ok((header, file))
    }

    fn damaged(&self, piece: &Piece, reason: &str) -> StorageError {
        StorageError::Corrupt {
            path: segment::path(&self.dir, piece.segment),
            offset: u64::from(piece.batch),
            reason: reason.to_owned(),
        }
    }
}
