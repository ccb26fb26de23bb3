//! Writes a stream of payload as checksummed blocks.

use std::sync::Arc;

use layer_format::block::{BLOCK_PAYLOAD, BLOCK_SIZE, BlockCrc, FileId, block_start};
use layer_format::header::Header;

use super::block_source::BlockSource;
use errors::StorageError;
use virtual_file::{AlignedBuf, BufferedWriter, KeptMemory, Shutdown, VirtualFile};

/// Appends payload to a file from block 1 on; block 0 is reserved for the header, which is written last.
#[derive(Debug)]
pub(super) struct BlockWriter {
    writer: BufferedWriter,
    file_id: FileId,
    block: u64,
    in_block: usize,
    crc: BlockCrc,
    /// The last block was appended. It carries a checksum of its own, so nothing may follow it.
    ended: bool,
}

/// Block 0 is written on its own, but direct I/O may require larger units.
pub(super) fn first_block(file: &VirtualFile) -> u64 {
    (file.align() / BLOCK_SIZE as u64).max(1)
}

impl BlockWriter {
    pub(super) fn new(file: Arc<VirtualFile>, file_id: FileId) -> Self {
        let block = first_block(&file);
        let writer = BufferedWriter::new(file, block * BLOCK_SIZE as u64);
        Self { writer, file_id, block, in_block: 0, crc: BlockCrc::new(file_id, block), ended: false }
    }

    pub(super) fn file(&self) -> &Arc<VirtualFile> {
        self.writer.file()
    }

    pub(super) fn file_id(&self) -> FileId {
        self.file_id
    }

    /// Reads what was appended, whether it is on disk yet or not.
    pub(super) fn source(&self) -> BlockSource {
        BlockSource::new(Arc::clone(self.writer.file()), self.file_id, Some(Arc::clone(self.writer.tail())))
    }

    /// Logical position of the next byte.
    #[inline]
    pub(super) fn position(&self) -> u64 {
        block_start(self.block) + self.in_block as u64
    }

    /// The block into which the next byte goes.
    pub(super) fn block(&self) -> u64 {
        self.block
    }

    /// See [`BufferedWriter::keep_written`].
    pub(super) fn keep_written(&mut self, bytes: u64) {
        self.writer.keep_written(bytes);
    }

    /// See [`BufferedWriter::keep_all`].
    pub(super) fn keep_all(&mut self, shared: Arc<KeptMemory>) {
        self.writer.keep_all(shared);
    }

    /// See [`BufferedWriter::hold`].
    pub(super) fn hold(&mut self) {
        self.writer.hold();
    }

    /// See [`BufferedWriter::release`].
    pub(super) fn release(&mut self) {
        self.writer.release();
    }

    /// See [`BufferedWriter::give_way`].
    pub(super) fn give_way(&mut self) {
        self.writer.give_way();
    }

    /// Makes room for `len` payload bytes; see [`BufferedWriter::reserve`].
    pub(super) async fn reserve(&mut self, len: usize) -> Result<(), StorageError> {
        let blocks = len / BLOCK_PAYLOAD + 2;
        self.writer.reserve(len + blocks * (BLOCK_SIZE - BLOCK_PAYLOAD)).await
    }

    /// Appends payload for which room was reserved.
    #[inline]
    pub(super) fn push(&mut self, payload: &[u8]) {
        let mut rest = payload;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(BLOCK_PAYLOAD - self.in_block));
            self.crc.update(now);
            self.writer.push(now);
            self.in_block += now.len();
            if self.in_block == BLOCK_PAYLOAD {
                self.end_block();
            }
            rest = later;
        }
    }

    fn end_block(&mut self) {
        self.writer.push(&self.crc.finish());
        self.block += 1;
        self.in_block = 0;
        self.crc = BlockCrc::new(self.file_id, self.block);
    }

    /// Reserves room and appends.
    pub(super) async fn append(&mut self, payload: &[u8]) -> Result<(), StorageError> {
        for chunk in payload.chunks(self.writer.piece_max()) {
            self.reserve(chunk.len()).await?;
            self.push(chunk);
        }
        Ok(())
    }

    /// Fills the current block with zeros, so that the next byte starts a block.
    pub(super) async fn pad_block(&mut self) -> Result<(), StorageError> {
        if self.in_block > 0 {
            const ZEROS: [u8; BLOCK_PAYLOAD] = [0; BLOCK_PAYLOAD];
            let missing = ZEROS.split_at(self.in_block).1;
            self.reserve(missing.len()).await?;
            self.push(missing);
        }
        Ok(())
    }

    /// Appends the last block, which is whole and carries its own checksum.
    pub(super) async fn end_with(&mut self, last: &[u8; BLOCK_SIZE]) -> Result<(), StorageError> {
        debug_assert!(self.in_block == 0 && !self.ended);
        self.writer.reserve(BLOCK_SIZE).await?;
        self.writer.push(last);
        self.block += 1;
        self.ended = true;
        Ok(())
    }

    /// Whether the last block was appended.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Writes everything out and cuts off padding. May be repeated after an error.
    pub(super) async fn flush_and_cut(&mut self) -> Result<u64, StorageError> {
        let exact = self.block * BLOCK_SIZE as u64;
        let written = self.writer.shutdown(Shutdown::PadTail).await?;
        // Anything that is still appended, after a failed sync, goes behind the padding.
        self.block = written / BLOCK_SIZE as u64;
        self.crc = BlockCrc::new(self.file_id, self.block);
        if written != exact {
            self.file().set_len(exact).await?;
        }
        Ok(exact)
    }

    /// Writes block 0.
    pub(super) async fn write_header(&mut self, header: &Header) -> Result<(), StorageError> {
        let unit = self.file().align() as usize;
        let mut buf = AlignedBuf::with_capacity(unit);
        buf.extend_from_slice(&header.encode());
        buf.extend_with_zeros(unit - buf.len());
        self.file().write_at(0, buf).await
    }

    /// See [`BufferedWriter::start_writeback`].
    pub(super) fn start_writeback(&self) {
        self.writer.start_writeback();
    }
}
