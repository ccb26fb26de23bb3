//! The kinds of keys, and how each is laid out in the six fields.

use std::ops::Range;

use super::Key;
use crate::reltag::{BlockNumber, RelTag, SlruKind};

/// Field 6 of the key that holds a relation's or segment's number of blocks.
pub const SIZE_FIELD: u32 = u32::MAX;
/// First kind byte of the sparse metadata key space.
pub const SPARSE_FIRST: u8 = 0x60;
/// First kind byte after the sparse metadata key space.
pub const SPARSE_END: u8 = 0x7F;

const KIND_REL: u8 = 0;
const KIND_SLRU: u8 = 1;
const KIND_TWOPHASE: u8 = 2;
const KIND_FILE: u8 = 3;
const KIND_REPLORIGIN: u8 = 0x63;
const KIND_REL_ENTRY: u8 = 0x65;

/// The databases: (tablespace, database) -> whether it has a relation map.
pub const DBDIR_KEY: Key = Key::MIN;
/// List of two-phase files.
pub const TWOPHASEDIR_KEY: Key = Key { field1: KIND_TWOPHASE, ..Key::MIN };
/// The `pg_control` file as it was at import time.
pub const CONTROLFILE_KEY: Key = Key { field1: KIND_FILE, ..Key::MIN };
/// The current `CheckPoint` struct.
pub const CHECKPOINT_KEY: Key = Key { field1: KIND_FILE, field6: 1, ..Key::MIN };
/// User tablespaces: OID -> the 16-bit number that replaces it in keys, and the path.
pub const TABLESPACES_KEY: Key = Key { field1: KIND_FILE, field6: 3, ..Key::MIN };
/// Settings that replay depends on (`wal_log_hints`, checksums...), as last given by the control file or a record.
pub const PARAMETERS_KEY: Key = Key { field1: KIND_FILE, field6: 4, ..Key::MIN };
/// The newest commit time so far: microseconds since 2000-01-01 00:00 UTC, as a big-endian `i64`. Absent before the
/// first commit.
pub const COMMIT_TIME_KEY: Key = Key { field1: KIND_FILE, field6: 5, ..Key::MIN };
/// Settings from the cluster's configuration files at import time. Absent in stores of earlier versions.
pub const SETTINGS_KEY: Key = Key { field1: KIND_FILE, field6: 6, ..Key::MIN };

/// All keys of relations, relation maps and [`DBDIR_KEY`] included, but for the entries that say which relations exist.
pub const ALL_RELATIONS: Range<Key> = Key::MIN..Key { field1: KIND_REL + 1, ..Key::MIN };

/// The entry that says whether a relation fork exists: one byte, or empty after a drop.
pub fn rel_entry_key(rel: RelTag) -> Key {
    Key { field1: KIND_REL_ENTRY, field6: 1, ..rel_block_key(rel, 0) }
}

/// The entries of all relation forks of a database in a tablespace.
pub fn rel_entry_range(spcnode: u32, dbnode: u32) -> Range<Key> {
    let all = dbdir_key_range(spcnode, dbnode);
    Key { field1: KIND_REL_ENTRY, ..all.start }..Key { field1: KIND_REL_ENTRY, ..all.end }
}

/// The relation map file of a database in a tablespace (`pg_filenode.map`).
pub fn relmap_key(spcnode: u32, dbnode: u32) -> Key {
    Key { field2: spcnode, field3: dbnode, ..Key::MIN }
}

/// The set of relation forks of a database in a tablespace.
pub fn reldir_key(spcnode: u32, dbnode: u32) -> Key {
    Key { field2: spcnode, field3: dbnode, field6: 1, ..Key::MIN }
}

/// One block of a relation fork.
pub fn rel_block_key(rel: RelTag, blkno: BlockNumber) -> Key {
    Key {
        field1: KIND_REL,
        field2: rel.spcnode,
        field3: rel.dbnode,
        field4: rel.relnode,
        field5: rel.forknum,
        field6: blkno,
    }
}

/// The number of blocks of a relation fork.
pub fn rel_size_key(rel: RelTag) -> Key {
    rel_block_key(rel, SIZE_FIELD)
}

/// All keys of one relation fork.
pub fn rel_key_range(rel: RelTag) -> Range<Key> {
    rel_block_key(rel, 0)..rel_block_key(RelTag { forknum: rel.forknum + 1, ..rel }, 0)
}

/// All keys of a database in a tablespace.
pub fn dbdir_key_range(spcnode: u32, dbnode: u32) -> Range<Key> {
    relmap_key(spcnode, dbnode)..Key {
        field2: spcnode,
        field3: dbnode,
        field4: u32::MAX,
        field5: u8::MAX,
        field6: u32::MAX,
        ..Key::MIN
    }
}

/// The set of segments of an SLRU.
pub fn slru_dir_key(kind: SlruKind) -> Key {
    Key { field1: KIND_SLRU, field2: u32::from(kind.number()), ..Key::MIN }
}

/// One page of an SLRU segment.
pub fn slru_block_key(kind: SlruKind, segno: u32, blkno: BlockNumber) -> Key {
    Key { field1: KIND_SLRU, field2: u32::from(kind.number()), field3: 1, field4: segno, field5: 0, field6: blkno }
}

/// The number of pages of an SLRU segment.
pub fn slru_segment_size_key(kind: SlruKind, segno: u32) -> Key {
    slru_block_key(kind, segno, SIZE_FIELD)
}

/// The state of a prepared transaction. From version 17 on, `xid` has its epoch in the high 32 bits.
pub fn twophase_file_key(xid: u64) -> Key {
    Key { field1: KIND_TWOPHASE, field4: (xid >> 40) as u32, field5: (xid >> 32) as u8, field6: xid as u32, ..Key::MIN }
}

/// The progress of a replication origin.
pub fn repl_origin_key(origin: u16) -> Key {
    Key { field1: KIND_REPLORIGIN, field6: u32::from(origin), ..Key::MIN }
}

/// All replication origins.
pub fn repl_origin_key_range() -> Range<Key> {
    repl_origin_key(0)..Key { field1: KIND_REPLORIGIN, field6: 0x1_0000, ..Key::MIN }
}

/// Whether keys of this kind may be absent.
pub fn is_sparse(key: &Key) -> bool {
    (SPARSE_FIRST..SPARSE_END).contains(&key.field1)
}

impl Key {
    /// The relation and block, if this is the key of a relation block.
    pub fn to_rel_block(&self) -> Option<(RelTag, BlockNumber)> {
        let is_block = self.field1 == KIND_REL && self.field4 != 0 && self.field6 != SIZE_FIELD;
        is_block.then_some((self.rel_tag(), self.field6))
    }

    /// The SLRU, segment and page, if this is the key of an SLRU page.
    pub fn to_slru_block(&self) -> Option<(SlruKind, u32, BlockNumber)> {
        let is_block = self.field1 == KIND_SLRU && self.field3 == 1 && self.field6 != SIZE_FIELD;
        let kind = SlruKind::from_number(u8::try_from(self.field2).ok()?)?;
        is_block.then_some((kind, self.field4, self.field6))
    }

    /// The relation, if this is the key of a relation entry.
    pub fn to_rel_entry(&self) -> Option<RelTag> {
        (self.field1 == KIND_REL_ENTRY && self.field4 != 0 && self.field6 == 1).then(|| self.rel_tag())
    }

    /// The relation, if this is the key of a relation size.
    pub fn to_rel_size(&self) -> Option<RelTag> {
        (self.field1 == KIND_REL && self.field4 != 0 && self.field6 == SIZE_FIELD).then(|| self.rel_tag())
    }

    /// The origin, if this is the key of a replication origin.
    pub fn to_repl_origin(&self) -> Option<u16> {
        u16::try_from(self.field6).ok().filter(|origin| *self == repl_origin_key(*origin))
    }

    fn rel_tag(&self) -> RelTag {
        RelTag { spcnode: self.field2, dbnode: self.field3, relnode: self.field4, forknum: self.field5 }
    }
}
