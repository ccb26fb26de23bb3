//! Relation maps (`relmapper.c`): the file numbers of the catalogs that cannot look up their own, in
//! `pg_filenode.map`; and the record that replaces a map (resource manager 7).

use thiserror::Error;

use crate::{
    cursor::{Cursor, Truncated, slice_at, u32_at},
    main_data::{MainDataError, count},
    rmgr::RmgrId,
    version::PgVersion,
};

/// Name of the file, in `global/` and in every database's directory.
pub const FILE_NAME: &str = "pg_filenode.map";

const MAGIC: u32 = 0x592717;
const HEADER_SIZE: usize = 8;
const ENTRY_SIZE: usize = 8;

/// Why bytes are not a relation map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RelMapError {
    /// The map is too short.
    #[error("relation map: {0}")]
    Truncated(#[from] Truncated),
    /// The magic number is wrong.
    #[error("relation map has magic {0:#x}")]
    Magic(u32),
    /// There are more entries than fit.
    #[error("relation map has {0} entries")]
    Count(u32),
    /// The CRC is wrong.
    #[error("relation map has CRC {stored:#010x}, computed {computed:#010x}")]
    Crc {
        /// Stored in the file.
        stored: u32,
        /// Computed from the file's content.
        computed: u32,
    },
}

/// Maximum number of entries of a map of this version.
pub const fn max_entries(version: PgVersion) -> usize {
    if version as u8 >= PgVersion::V16 as u8 { 64 } else { 62 }
}

/// Size of the file in bytes.
pub const fn file_size(version: PgVersion) -> usize {
    if version as u8 >= PgVersion::V16 as u8 { 524 } else { 512 }
}

const fn crc_at(version: PgVersion) -> usize {
    HEADER_SIZE + max_entries(version) * ENTRY_SIZE
}

/// Decodes a map: pairs of catalog OID and file number.
pub fn decode(version: PgVersion, bytes: &[u8]) -> Result<Vec<(u32, u32)>, RelMapError> {
    let magic = u32_at(bytes, 0)?;
    if magic != MAGIC {
        return Err(RelMapError::Magic(magic));
    }
    let crc_at = crc_at(version);
    let (stored, computed) = (u32_at(bytes, crc_at)?, utils::crc32c::crc32c(slice_at(bytes, 0, crc_at)?));
    if stored != computed {
        return Err(RelMapError::Crc { stored, computed });
    }
    let entries = u32_at(bytes, 4)?;
    if entries as usize > max_entries(version) {
        return Err(RelMapError::Count(entries));
    }
    let mut cursor = Cursor::new(bytes);
    cursor.skip(HEADER_SIZE)?;
    (0..entries).map(|_| Ok((cursor.u32()?, cursor.u32()?))).collect()
}

/// Encodes a map; `None` if there are too many entries.
pub fn encode(version: PgVersion, entries: &[(u32, u32)]) -> Option<Vec<u8>> {
    if entries.len() > max_entries(version) {
        return None;
    }
    let mut bytes = Vec::with_capacity(file_size(version));
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&(entries.len() as u32).to_le_bytes());
    for (oid, file) in entries {
        bytes.extend_from_slice(&oid.to_le_bytes());
        bytes.extend_from_slice(&file.to_le_bytes());
    }
    bytes.resize(crc_at(version), 0);
    let crc = utils::crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    bytes.resize(file_size(version), 0);
    Some(bytes)
}

/// A relation map record: the new content of the whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelMapUpdate<'a> {
    /// Database OID, 0 for the shared map.
    pub db: u32,
    /// Tablespace OID of the database's directory.
    pub tablespace: u32,
    /// Content of the file.
    pub file: &'a [u8],
}

/// Parses a relation map record; `info` is the record's `xl_info`.
pub fn parse(info: u8, main_data: &[u8]) -> Result<RelMapUpdate<'_>, MainDataError> {
    let opcode = info & 0xF0;
    if opcode != 0 {
        return Err(MainDataError::Opcode { rmgr: RmgrId::RELMAP, opcode });
    }
    let mut cursor = Cursor::new(main_data);
    let (db, tablespace, len) = (cursor.u32()?, cursor.u32()?, count(&mut cursor)?);
    Ok(RelMapUpdate { db, tablespace, file: cursor.take(len as usize)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip_and_damage() {
        for version in PgVersion::ALL {
            let entries: Vec<_> = (0..max_entries(version) as u32).map(|i| (1000 + i, 2000 + i)).collect();
            for entries in [&entries[..], &entries[..3], &[]] {
                let bytes = encode(version, entries).unwrap();
                assert_eq!(bytes.len(), file_size(version));
                assert_eq!(decode(version, &bytes).unwrap(), entries);
                let mut damaged = bytes.clone();
                damaged[100] ^= 1;
                assert!(matches!(decode(version, &damaged), Err(RelMapError::Crc { .. })));
                assert!(decode(version, &bytes[..bytes.len() - 9]).is_err());
            }
            assert_eq!(encode(version, &vec![(1, 1); 65]), None);
        }
    }

    #[test]
    fn record_holds_the_file() {
        let data = [&5u32.to_le_bytes()[..], &1663u32.to_le_bytes(), &3u32.to_le_bytes(), b"map"].concat();
        assert_eq!(parse(0, &data), Ok(RelMapUpdate { db: 5, tablespace: 1663, file: b"map" }));
        assert!(parse(0, &data[..14]).is_err());
        assert!(parse(0x10, &data).is_err());
    }
}
