//! Tablespaces: the 16-bit number that represents each in keys.
//!
//! A compact key has 16 bits for the tablespace. OIDs below [`FIRST_SLOT`] are used directly; a larger one gets a
//! slot, `FIRST_SLOT + n`, when the tablespace is created or imported. The table of slots is part of a timeline.

use pageserver_api::reltag::RelTag;
use postgres_formats::record::RelFile;
use serde::{Deserialize, Serialize};
use utils::bin_ser::{BeSer, DeserializeError};

/// First number that is a slot instead of an OID.
pub const FIRST_SLOT: u32 = 0xF000;
const LAST_SLOT: u32 = 0xFFFF;

/// A user tablespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tablespace {
    /// Its OID.
    pub oid: u32,
    /// The number that represents it in keys.
    pub number: u32,
    /// Its directory on the server; empty if it is inside the data directory.
    pub path: Vec<u8>,
}

/// The user tablespaces of a timeline at some LSN, sorted by OID.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TablespaceTable(Vec<Tablespace>);

/// Why a tablespace has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TablespaceError {
    /// No record or import announced it.
    #[error("tablespace {0} is not known: neither the import nor the WAL created it")]
    Unknown(u32),
    /// All slots are taken.
    #[error("no slot is left for tablespace {0}: there are 4096 for OIDs above 61439")]
    Full(u32),
}

impl TablespaceTable {
    /// Decodes a stored table.
    pub fn decode(bytes: &[u8]) -> Result<Self, DeserializeError> {
        Self::des(bytes)
    }

    /// Encodes the table for storage. Equal tables have equal encodings.
    pub fn encode(&self) -> Vec<u8> {
        self.to_bytes()
    }

    /// The number that represents tablespace `oid` in keys.
    pub fn number(&self, oid: u32) -> Result<u32, TablespaceError> {
        if oid < FIRST_SLOT {
            return Ok(oid);
        }
        self.get(oid).map(|entry| entry.number).ok_or(TablespaceError::Unknown(oid))
    }

    /// The OID that `number` represents.
    pub fn oid(&self, number: u32) -> Option<u32> {
        if number < FIRST_SLOT {
            return Some(number);
        }
        self.0.iter().find(|entry| entry.number == number).map(|entry| entry.oid)
    }

    /// The tag of the relation fork that a record names.
    pub fn rel_tag(&self, rel: RelFile, forknum: u8) -> Result<RelTag, TablespaceError> {
        Ok(RelTag { spcnode: self.number(rel.spc)?, dbnode: rel.db, relnode: rel.rel, forknum })
    }

    /// The entry of tablespace `oid`.
    pub fn get(&self, oid: u32) -> Option<&Tablespace> {
        let at = self.0.binary_search_by_key(&oid, |entry| entry.oid).ok()?;
        self.0.get(at)
    }

    /// All entries, sorted by OID.
    pub fn entries(&self) -> &[Tablespace] {
        &self.0
    }

    /// Adds tablespace `oid`, or changes the path of a known one. Returns its number.
    pub fn create(&mut self, oid: u32, path: &[u8]) -> Result<u32, TablespaceError> {
        let place = self.0.binary_search_by_key(&oid, |entry| entry.oid);
        let number = match place {
            Ok(at) => self.0.get(at).map_or(oid, |entry| entry.number),
            Err(_) if oid < FIRST_SLOT => oid,
            Err(_) => self.free_slot().ok_or(TablespaceError::Full(oid))?,
        };
        let entry = Tablespace { oid, number, path: path.to_vec() };
        match place.map(|at| self.0.get_mut(at)) {
            Ok(Some(known)) => *known = entry,
            Ok(None) => {}
            Err(at) => self.0.insert(at, entry),
        }
        Ok(number)
    }

    /// Removes tablespace `oid`. Its slot may be reused, because all its relations are gone.
    pub fn remove(&mut self, oid: u32) {
        self.0.retain(|entry| entry.oid != oid);
    }

    fn free_slot(&self) -> Option<u32> {
        (FIRST_SLOT..=LAST_SLOT).find(|slot| self.0.iter().all(|entry| entry.number != *slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_oids_stand_for_themselves_and_large_ones_get_slots() {
        let mut table = TablespaceTable::default();
        assert_eq!(table.number(1663), Ok(1663));
        assert_eq!(table.number(16384), Ok(16384));
        assert_eq!(table.number(0xF000), Err(TablespaceError::Unknown(0xF000)));
        assert_eq!(table.create(70_000, b"/a"), Ok(0xF000));
        assert_eq!(table.create(16_400, b"/c"), Ok(16_400));
        assert_eq!(table.create(0xF000, b""), Ok(0xF001));
        assert_eq!(table.create(70_000, b"/b"), Ok(0xF000));
        assert_eq!(table.get(70_000).map(|entry| &entry.path[..]), Some(&b"/b"[..]));
        assert_eq!((table.oid(0xF000), table.oid(1663), table.oid(0xF002)), (Some(70_000), Some(1663), None));
        assert_eq!(TablespaceTable::decode(&table.encode()).unwrap(), table);
        table.remove(70_000);
        assert_eq!(table.create(80_000, b""), Ok(0xF000));
    }

    #[test]
    fn slots_run_out() {
        let mut table = TablespaceTable::default();
        for oid in 0..4096 {
            table.create(100_000 + oid, b"").unwrap();
        }
        assert_eq!(table.create(99_999, b""), Err(TablespaceError::Full(99_999)));
    }
}
