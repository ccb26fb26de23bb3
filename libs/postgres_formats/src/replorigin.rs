//! Replication origins (`origin.c`): their records (resource manager 19), and the file that stores their progress
//! while a server is down.

use std::collections::BTreeMap;

use thiserror::Error;
use utils::lsn::Lsn;

use crate::{cursor::Cursor, main_data::MainDataError, rmgr::RmgrId};

/// The file with the progress of all origins, in the data directory.
pub const CHECKPOINT_FILE: &str = "pg_logical/replorigin_checkpoint";
/// The id that marks changes not to be replicated (`DoNotReplicateId`). It is not an origin and has no progress.
pub const DO_NOT_REPLICATE: u16 = u16::MAX;

const MAGIC: u32 = 0x1257_DADE;
/// An origin's id, 6 bytes of padding, its progress.
const ENTRY_SIZE: usize = 16;

/// Why bytes are not a file with the progress of origins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CheckpointFileError {
    /// The magic number is wrong.
    #[error("progress of replication origins has magic {0:#x}")]
    Magic(u32),
    /// There is no whole number of entries between magic and CRC.
    #[error("progress of replication origins has {0} bytes")]
    Length(usize),
    /// The CRC at its end is wrong.
    #[error("progress of replication origins has CRC {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// Stored in the file.
        stored: u32,
        /// Computed from the file's content.
        computed: u32,
    },
}

/// A replication origin record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplOriginRecord {
    /// An origin's progress was set.
    Set {
        /// Origin id.
        node: u16,
        /// How far the origin's changes are applied here, in terms of the origin's WAL.
        remote_lsn: Lsn,
        /// Whether the progress may go backward.
        force: bool,
    },
    /// An origin was dropped.
    Drop {
        /// Origin id.
        node: u16,
    },
}

/// Parses a replication origin record; `info` is the record's `xl_info`.
pub fn parse(info: u8, main_data: &[u8]) -> Result<ReplOriginRecord, MainDataError> {
    let mut cursor = Cursor::new(main_data);
    match info & 0xF0 {
        0x00 => {
            let (remote_lsn, node) = (Lsn(cursor.u64()?), cursor.u16()?);
            Ok(ReplOriginRecord::Set { node, remote_lsn, force: cursor.u8()? != 0 })
        }
        0x10 => Ok(ReplOriginRecord::Drop { node: cursor.u16()? }),
        opcode => Err(MainDataError::Opcode { rmgr: RmgrId::REPLORIGIN, opcode }),
    }
}

/// Encodes the content of [`CHECKPOINT_FILE`] for origins with this progress.
pub fn encode_checkpoint(progress: &BTreeMap<u16, Lsn>) -> Vec<u8> {
    let mut file = MAGIC.to_le_bytes().to_vec();
    for (origin, lsn) in progress {
        file.extend_from_slice(&u64::from(*origin).to_le_bytes());
        file.extend_from_slice(&lsn.0.to_le_bytes());
    }
    let crc = utils::crc32c::crc32c(&file);
    file.extend_from_slice(&crc.to_le_bytes());
    file
}

/// Decodes the progress of origins from the content of [`CHECKPOINT_FILE`].
pub fn decode_checkpoint(file: &[u8]) -> Result<BTreeMap<u16, Lsn>, CheckpointFileError> {
    let wrong_length = CheckpointFileError::Length(file.len());
    let (content, crc) = file.split_last_chunk::<4>().ok_or(wrong_length)?;
    let (magic, entries) = content.split_first_chunk::<4>().ok_or(wrong_length)?;
    if u32::from_le_bytes(*magic) != MAGIC {
        return Err(CheckpointFileError::Magic(u32::from_le_bytes(*magic)));
    }
    let (entries, rest) = entries.as_chunks::<ENTRY_SIZE>();
    if !rest.is_empty() {
        return Err(wrong_length);
    }
    let (stored, computed) = (u32::from_le_bytes(*crc), utils::crc32c::crc32c(content));
    if stored != computed {
        return Err(CheckpointFileError::Crc { stored, computed });
    }
    let entry = |[low, high, _, _, _, _, _, _, lsn @ ..]: &[u8; ENTRY_SIZE]| {
        (u16::from_le_bytes([*low, *high]), Lsn(u64::from_le_bytes(*lsn)))
    };
    Ok(entries.iter().map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written by a server of version 15, with two origins.
    const FILE: [u8; 40] = [
        0xDE, 0xDA, 0x57, 0x12, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0xB8, 0x2A,
        0x5A, 0x01, 2, 0, 0, 0, 0x2B, 0x4A, 0xC0, 0x81,
    ];

    #[test]
    fn the_file_of_a_server_is_read_and_written() {
        let progress = BTreeMap::from([(1, Lsn(0x1000)), (3, Lsn(0x2_015A_2AB8))]);
        assert_eq!(decode_checkpoint(&FILE), Ok(progress.clone()));
        assert_eq!(encode_checkpoint(&progress), FILE);
        assert_eq!(decode_checkpoint(&encode_checkpoint(&BTreeMap::new())), Ok(BTreeMap::new()));
    }

    #[test]
    fn damage_is_told() {
        let mut other = FILE;
        other[0] ^= 1;
        assert_eq!(decode_checkpoint(&other), Err(CheckpointFileError::Magic(0x1257_DADF)));
        for len in [0, 3, 7, 39] {
            assert_eq!(decode_checkpoint(&FILE[..len]), Err(CheckpointFileError::Length(len)));
        }
        for at in 4..FILE.len() {
            let mut flipped = FILE;
            flipped[at] ^= 0x40;
            assert!(matches!(decode_checkpoint(&flipped), Err(CheckpointFileError::Crc { .. })), "byte {at}");
        }
    }
}
