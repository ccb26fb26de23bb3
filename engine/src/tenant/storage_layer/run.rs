//! Contiguous verified blocks.

use std::sync::Arc;

use bytes::Bytes;
use layer_format::block::BLOCK_SIZE;

use virtual_file::AlignedBuf;

/// Maximum blocks of one read.
pub(super) const READ_BLOCKS_MAX: u64 = 256;

/// Contiguous verified blocks.
#[derive(Debug)]
pub(super) struct Run {
    first: u64,
    bytes: RunBytes,
}

#[derive(Debug)]
enum RunBytes {
    /// As read: blocks of [`BLOCK_SIZE`], already verified.
    Disk(AlignedBuf),
    /// Copied from the tail in memory, perhaps with an incomplete last block.
    Memory(Vec<u8>),
    /// What the writer of the file has in memory.
    Kept(Arc<AlignedBuf>),
    /// From the bucket or a cache of it.
    Shared(Bytes),
}

impl Drop for Run {
    fn drop(&mut self) {
        let bytes = std::mem::replace(&mut self.bytes, RunBytes::Memory(Vec::new()));
        if let RunBytes::Disk(buf) = bytes
            && buf.capacity() == READ_BLOCKS_MAX as usize * BLOCK_SIZE
        {
            buf.recycle();
        }
    }
}

impl Run {
    /// Blocks from `first` on as they were read, already verified.
    pub(super) fn read(first: u64, buf: AlignedBuf) -> Self {
        Self { first, bytes: RunBytes::Disk(buf) }
    }

    /// Blocks from `first` on; the last one may be incomplete.
    pub(super) fn copied(first: u64, bytes: Vec<u8>) -> Self {
        Self { first, bytes: RunBytes::Memory(bytes) }
    }

    /// Blocks from `first` on, as they were or will be written.
    pub(super) fn kept(first: u64, buf: Arc<AlignedBuf>) -> Self {
        Self { first, bytes: RunBytes::Kept(buf) }
    }

    /// Blocks from `first` on, already verified.
    pub(super) fn shared(first: u64, bytes: Bytes) -> Self {
        Self { first, bytes: RunBytes::Shared(bytes) }
    }

    /// The first block.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Block `number` as it is in the file.
    pub(super) fn block(&self, number: u64) -> Option<&[u8]> {
        let start = usize::try_from(number.checked_sub(self.first)?).ok()?.checked_mul(BLOCK_SIZE)?;
        self.bytes().get(start..start + BLOCK_SIZE)
    }

    /// The bytes of all blocks.
    pub(super) fn bytes(&self) -> &[u8] {
        match &self.bytes {
            RunBytes::Disk(buf) => buf,
            RunBytes::Memory(bytes) => bytes,
            RunBytes::Kept(buf) => buf,
            RunBytes::Shared(bytes) => bytes,
        }
    }
}
