//! Checksummed blocks: 4,092 bytes of payload and a CRC-32C that also covers the block's number and its file's id.
//!
//! A block at the wrong place of its file, or in another file, fails its check like a damaged one.

use crate::FormatError;

/// Size of a block on disk in bytes.
pub const BLOCK_SIZE: usize = 4096;
/// Payload bytes of a block.
pub const BLOCK_PAYLOAD: usize = BLOCK_SIZE - CRC_LEN;
/// Length of the checksum at the end of a block.
pub const CRC_LEN: usize = 4;

/// Random number that identifies a layer file and goes into the checksum of each of its blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct FileId(pub u64);

/// The file id in the checksums of headers and footers, since they are read before the file's own id is known.
pub const ENVELOPE_FILE_ID: FileId = FileId(0);

/// Computes the checksum of a block whose payload arrives in pieces.
#[derive(Clone, Copy, Debug)]
pub struct BlockCrc(u32);

impl BlockCrc {
    /// Starts the checksum of block number `block` of file `file_id`.
    #[inline]
    pub fn new(file_id: FileId, block: u64) -> Self {
        let mut seed = [0; 16];
        let (id, number) = seed.split_at_mut(8);
        id.copy_from_slice(&file_id.0.to_le_bytes());
        number.copy_from_slice(&block.to_le_bytes());
        Self(utils::crc32c::crc32c(&seed))
    }

    /// Adds the next payload bytes.
    #[inline]
    pub fn update(&mut self, piece: &[u8]) {
        self.0 = utils::crc32c::crc32c_append(self.0, piece);
    }

    /// Returns the bytes that end the block.
    #[inline]
    pub fn finish(self) -> [u8; CRC_LEN] {
        self.0.to_le_bytes()
    }
}

/// Builds a whole block from its payload, padded with zeros.
///
/// # Panics
/// If the payload is longer than [`BLOCK_PAYLOAD`].
pub fn seal(file_id: FileId, block: u64, payload: &[u8]) -> [u8; BLOCK_SIZE] {
    assert!(payload.len() <= BLOCK_PAYLOAD, "payload does not fit a block");
    let mut out = [0; BLOCK_SIZE];
    let (body, trailer) = out.split_at_mut(BLOCK_PAYLOAD);
    if let Some(front) = body.get_mut(..payload.len()) {
        front.copy_from_slice(payload);
    }
    let mut crc = BlockCrc::new(file_id, block);
    crc.update(body);
    trailer.copy_from_slice(&crc.finish());
    out
}

/// The payload of a block, if its checksum matches.
pub fn open(file_id: FileId, block: u64, bytes: &[u8]) -> Result<&[u8], FormatError> {
    let Some((payload, stored)) = bytes.split_at_checked(BLOCK_PAYLOAD).filter(|_| bytes.len() == BLOCK_SIZE) else {
        return Err(FormatError::new(format!("block {block} has {} of {BLOCK_SIZE} bytes", bytes.len())));
    };
    let mut crc = BlockCrc::new(file_id, block);
    crc.update(payload);
    if crc.finish() == stored {
        Ok(payload)
    } else {
        Err(FormatError::new(format!("checksum mismatch in block {block}")))
    }
}

/// The block that contains logical position `logical`.
#[inline]
pub fn block_of(logical: u64) -> u64 {
    logical / BLOCK_PAYLOAD as u64
}

/// Offset of logical position `logical` in its block's payload.
#[inline]
pub fn offset_in_block(logical: u64) -> usize {
    (logical % BLOCK_PAYLOAD as u64) as usize
}

/// Logical position of the start of block `block`.
#[inline]
pub fn block_start(block: u64) -> u64 {
    block * BLOCK_PAYLOAD as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn damage_and_misplacement_are_found(
            payload in prop::collection::vec(any::<u8>(), 0..=BLOCK_PAYLOAD),
            id: u64, block: u64, flip in 0..BLOCK_SIZE * 8, other in 1u64..,
        ) {
            let sealed = seal(FileId(id), block, &payload);
            prop_assert_eq!(&open(FileId(id), block, &sealed).unwrap()[..payload.len()], &payload[..]);
            prop_assert!(open(FileId(id), block.wrapping_add(other), &sealed).is_err());
            prop_assert!(open(FileId(id.wrapping_add(other)), block, &sealed).is_err());
            let mut damaged = sealed;
            damaged[flip / 8] ^= 1 << (flip % 8);
            prop_assert!(open(FileId(id), block, &damaged).is_err());
        }
    }

    #[test]
    fn logical_positions() {
        assert_eq!((block_of(4091), offset_in_block(4091)), (0, 4091));
        assert_eq!((block_of(4092), offset_in_block(4092)), (1, 0));
        assert_eq!(block_start(2), 8184);
        assert!(open(FileId(0), 0, &[0; 100]).is_err());
    }
}
