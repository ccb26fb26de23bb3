//! Values of the directory keys. Maps and sets are stored in sorted order, so equal directories have equal bytes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pageserver_api::key::Key;
use postgres_formats::version::PgVersion;
use serde::{Serialize, de::DeserializeOwned};
use utils::bin_ser::BeSer;
use utils::lsn::Lsn;

use errors::StorageError;

/// Value of a relation fork's entry if the fork exists.
pub const EXISTS: &[u8] = b"r";

/// The databases: (tablespace number, database OID) -> whether it has a relation map there.
pub type DbDir = BTreeMap<(u32, u32), bool>;

/// The segments of an SLRU.
pub type SlruDir = BTreeSet<u32>;

/// The prepared transactions; from version 17 on with their epoch in the high 32 bits.
pub type TwoPhaseDir = BTreeSet<u64>;

/// Encodes a directory value.
pub fn encode<T: Serialize>(value: &T) -> Bytes {
    Bytes::from(value.to_bytes())
}

/// Decodes the value of the directory key `key`.
pub fn decode<T: DeserializeOwned>(key: Key, bytes: &[u8]) -> Result<T, StorageError> {
    T::des(bytes).map_err(|error| malformed(key, &error))
}

/// Encodes a number of blocks.
pub fn encode_size(blocks: u32) -> Bytes {
    Bytes::copy_from_slice(&blocks.to_le_bytes())
}

/// Decodes a number of blocks.
pub fn decode_size(key: Key, bytes: &[u8]) -> Result<u32, StorageError> {
    let bytes = <[u8; 4]>::try_from(bytes).map_err(|_| malformed(key, &format!("{} bytes", bytes.len())))?;
    Ok(u32::from_le_bytes(bytes))
}

/// Encodes the list of prepared transactions; ids have 32 bits up to version 16.
pub fn encode_twophase(version: PgVersion, dir: &TwoPhaseDir) -> Bytes {
    match version {
        PgVersion::V14 | PgVersion::V15 | PgVersion::V16 => {
            encode(&dir.iter().map(|xid| *xid as u32).collect::<BTreeSet<u32>>())
        }
        PgVersion::V17 | PgVersion::V18 => encode(dir),
    }
}

/// Decodes what [`encode_twophase`] encodes.
pub fn decode_twophase(version: PgVersion, key: Key, bytes: &[u8]) -> Result<TwoPhaseDir, StorageError> {
    match version {
        PgVersion::V14 | PgVersion::V15 | PgVersion::V16 => {
            Ok(decode::<BTreeSet<u32>>(key, bytes)?.into_iter().map(u64::from).collect())
        }
        PgVersion::V17 | PgVersion::V18 => decode(key, bytes),
    }
}

/// Encodes the progress of a replication origin.
pub fn encode_progress(lsn: Lsn) -> Bytes {
    Bytes::copy_from_slice(&lsn.0.to_be_bytes())
}

/// Decodes the progress of a replication origin; `None` if the origin was dropped.
pub fn decode_progress(key: Key, bytes: &[u8]) -> Result<Option<Lsn>, StorageError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes = <[u8; 8]>::try_from(bytes).map_err(|_| malformed(key, &format!("{} bytes", bytes.len())))?;
    Ok(Some(Lsn(u64::from_be_bytes(bytes))))
}

/// The error for a stored value that is not valid for its key.
pub(crate) fn malformed(key: Key, reason: &dyn std::fmt::Display) -> StorageError {
    StorageError::Internal(format!("value of key {key} is malformed: {reason}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts() {
        let dbs = DbDir::from([((1663, 5), true), ((1664, 0), false)]);
        let bytes = encode(&dbs);
        assert_eq!(hex(&bytes), "0000000000000002 0000067f 00000005 01 00000680 00000000 00");
        assert_eq!(decode::<DbDir>(Key::MIN, &bytes).unwrap(), dbs);
        let segments = SlruDir::from([3, 1]);
        assert_eq!(hex(&encode(&segments)), "0000000000000002 00000001 00000003");
        assert_eq!(decode_size(Key::MIN, &encode_size(7)).unwrap(), 7);
        assert!(decode_size(Key::MIN, &[1, 2, 3]).is_err());
        assert!(decode::<DbDir>(Key::MIN, &bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn prepared_transactions_by_version() {
        let dir = TwoPhaseDir::from([0x1_0000_0005]);
        let bytes = encode_twophase(PgVersion::V17, &dir);
        assert_eq!((bytes.len(), decode_twophase(PgVersion::V17, Key::MIN, &bytes).unwrap()), (16, dir));
        let dir = TwoPhaseDir::from([5, 900]);
        let bytes = encode_twophase(PgVersion::V15, &dir);
        assert_eq!((bytes.len(), decode_twophase(PgVersion::V15, Key::MIN, &bytes).unwrap()), (16, dir));
    }

    fn hex(bytes: &[u8]) -> String {
        let mut text = String::new();
        let widths: &[usize] = if bytes.len() == 26 { &[8, 4, 4, 1, 4, 4, 1] } else { &[8, 4, 4] };
        let mut rest = bytes;
        for width in widths {
            let (head, tail) = rest.split_at(*width);
            text.push_str(&head.iter().map(|b| format!("{b:02x}")).collect::<String>());
            text.push(' ');
            rest = tail;
        }
        text.trim_end().to_owned()
    }
}
