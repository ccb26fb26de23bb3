//! Names of records (the `*_identify` functions of the server's resource managers).

use super::RmgrId;
use crate::version::PgVersion;

/// `Rmgr/OPERATION` for a record's resource manager and info byte, e.g. `Heap/INSERT+INIT`.
///
/// An unknown operation yields `Rmgr/UNKNOWN`, an extension's resource manager `custom/UNKNOWN`.
pub fn record_name(version: PgVersion, rmid: RmgrId, info: u8) -> &'static str {
    let opcode = if rmid == RmgrId::XACT { info & 0x70 } else { info & 0xF0 };
    versioned_name(version, rmid, opcode).unwrap_or_else(|| common_name(rmid, opcode))
}

/// Names that differ between versions.
fn versioned_name(version: PgVersion, rmid: RmgrId, opcode: u8) -> Option<&'static str> {
    let wal_logged_create = version >= PgVersion::V15;
    let merged_prune = version >= PgVersion::V17;
    Some(match (rmid, opcode) {
        (RmgrId::XLOG, 0xE0) if version >= PgVersion::V17 => "XLOG/CHECKPOINT_REDO",
        (RmgrId::DBASE, 0x00) if wal_logged_create => "Database/CREATE_FILE_COPY",
        (RmgrId::DBASE, 0x10) if wal_logged_create => "Database/CREATE_WAL_LOG",
        (RmgrId::DBASE, 0x20) if wal_logged_create => "Database/DROP",
        (RmgrId::DBASE, 0x00) => "Database/CREATE",
        (RmgrId::DBASE, 0x10) => "Database/DROP",
        (RmgrId::HEAP2, 0x10) if merged_prune => "Heap2/PRUNE_ON_ACCESS",
        (RmgrId::HEAP2, 0x20) if merged_prune => "Heap2/PRUNE_VACUUM_SCAN",
        (RmgrId::HEAP2, 0x30) if merged_prune => "Heap2/PRUNE_VACUUM_CLEANUP",
        _ => return None,
    })
}

/// Names that are the same in all versions.
fn common_name(rmid: RmgrId, opcode: u8) -> &'static str {
    let known = COMMON.get(usize::from(rmid.0)).and_then(|(_, names)| names.iter().find(|(op, _)| *op == opcode));
    let unknown = COMMON.get(usize::from(rmid.0)).map_or("custom/UNKNOWN", |(unknown, _)| *unknown);
    known.map_or(unknown, |(_, name)| *name)
}

type Names = (&'static str, &'static [(u8, &'static str)]);

/// By resource manager id: the name of unknown operations, then opcodes and names.
const COMMON: [Names; 22] = [
    (
        "XLOG/UNKNOWN",
        &[
            (0x00, "XLOG/CHECKPOINT_SHUTDOWN"),
            (0x10, "XLOG/CHECKPOINT_ONLINE"),
            (0x20, "XLOG/NOOP"),
            (0x30, "XLOG/NEXTOID"),
            (0x40, "XLOG/SWITCH"),
            (0x50, "XLOG/BACKUP_END"),
            (0x60, "XLOG/PARAMETER_CHANGE"),
            (0x70, "XLOG/RESTORE_POINT"),
            (0x80, "XLOG/FPW_CHANGE"),
            (0x90, "XLOG/END_OF_RECOVERY"),
            (0xA0, "XLOG/FPI_FOR_HINT"),
            (0xB0, "XLOG/FPI"),
            (0xD0, "XLOG/OVERWRITE_CONTRECORD"),
        ],
    ),
    (
        "Transaction/UNKNOWN",
        &[
            (0x00, "Transaction/COMMIT"),
            (0x10, "Transaction/PREPARE"),
            (0x20, "Transaction/ABORT"),
            (0x30, "Transaction/COMMIT_PREPARED"),
            (0x40, "Transaction/ABORT_PREPARED"),
            (0x50, "Transaction/ASSIGNMENT"),
            (0x60, "Transaction/INVALIDATION"),
        ],
    ),
    ("Storage/UNKNOWN", &[(0x10, "Storage/CREATE"), (0x20, "Storage/TRUNCATE")]),
    ("CLOG/UNKNOWN", &[(0x00, "CLOG/ZEROPAGE"), (0x10, "CLOG/TRUNCATE")]),
    ("Database/UNKNOWN", &[]),
    ("Tablespace/UNKNOWN", &[(0x00, "Tablespace/CREATE"), (0x10, "Tablespace/DROP")]),
    (
        "MultiXact/UNKNOWN",
        &[
            (0x00, "MultiXact/ZERO_OFF_PAGE"),
            (0x10, "MultiXact/ZERO_MEM_PAGE"),
            (0x20, "MultiXact/CREATE_ID"),
            (0x30, "MultiXact/TRUNCATE_ID"),
        ],
    ),
    ("RelMap/UNKNOWN", &[(0x00, "RelMap/UPDATE")]),
    ("Standby/UNKNOWN", &[(0x00, "Standby/LOCK"), (0x10, "Standby/RUNNING_XACTS"), (0x20, "Standby/INVALIDATIONS")]),
    (
        "Heap2/UNKNOWN",
        &[
            (0x00, "Heap2/REWRITE"),
            (0x10, "Heap2/PRUNE"),
            (0x20, "Heap2/VACUUM"),
            (0x30, "Heap2/FREEZE_PAGE"),
            (0x40, "Heap2/VISIBLE"),
            (0x50, "Heap2/MULTI_INSERT"),
            (0xD0, "Heap2/MULTI_INSERT+INIT"),
            (0x60, "Heap2/LOCK_UPDATED"),
            (0x70, "Heap2/NEW_CID"),
        ],
    ),
    (
        "Heap/UNKNOWN",
        &[
            (0x00, "Heap/INSERT"),
            (0x80, "Heap/INSERT+INIT"),
            (0x10, "Heap/DELETE"),
            (0x20, "Heap/UPDATE"),
            (0xA0, "Heap/UPDATE+INIT"),
            (0x30, "Heap/TRUNCATE"),
            (0x40, "Heap/HOT_UPDATE"),
            (0xC0, "Heap/HOT_UPDATE+INIT"),
            (0x50, "Heap/HEAP_CONFIRM"),
            (0x60, "Heap/LOCK"),
            (0x70, "Heap/INPLACE"),
        ],
    ),
    (
        "Btree/UNKNOWN",
        &[
            (0x00, "Btree/INSERT_LEAF"),
            (0x10, "Btree/INSERT_UPPER"),
            (0x20, "Btree/INSERT_META"),
            (0x30, "Btree/SPLIT_L"),
            (0x40, "Btree/SPLIT_R"),
            (0x50, "Btree/INSERT_POST"),
            (0x60, "Btree/DEDUP"),
            (0x70, "Btree/DELETE"),
            (0x80, "Btree/UNLINK_PAGE"),
            (0x90, "Btree/UNLINK_PAGE_META"),
            (0xA0, "Btree/NEWROOT"),
            (0xB0, "Btree/MARK_PAGE_HALFDEAD"),
            (0xC0, "Btree/VACUUM"),
            (0xD0, "Btree/REUSE_PAGE"),
            (0xE0, "Btree/META_CLEANUP"),
        ],
    ),
    (
        "Hash/UNKNOWN",
        &[
            (0x00, "Hash/INIT_META_PAGE"),
            (0x10, "Hash/INIT_BITMAP_PAGE"),
            (0x20, "Hash/INSERT"),
            (0x30, "Hash/ADD_OVFL_PAGE"),
            (0x40, "Hash/SPLIT_ALLOCATE_PAGE"),
            (0x50, "Hash/SPLIT_PAGE"),
            (0x60, "Hash/SPLIT_COMPLETE"),
            (0x70, "Hash/MOVE_PAGE_CONTENTS"),
            (0x80, "Hash/SQUEEZE_PAGE"),
            (0x90, "Hash/DELETE"),
            (0xA0, "Hash/SPLIT_CLEANUP"),
            (0xB0, "Hash/UPDATE_META_PAGE"),
            (0xC0, "Hash/VACUUM_ONE_PAGE"),
        ],
    ),
    (
        "Gin/UNKNOWN",
        &[
            (0x10, "Gin/CREATE_PTREE"),
            (0x20, "Gin/INSERT"),
            (0x30, "Gin/SPLIT"),
            (0x40, "Gin/VACUUM_PAGE"),
            (0x50, "Gin/DELETE_PAGE"),
            (0x60, "Gin/UPDATE_META_PAGE"),
            (0x70, "Gin/INSERT_LISTPAGE"),
            (0x80, "Gin/DELETE_LISTPAGE"),
            (0x90, "Gin/VACUUM_DATA_LEAF_PAGE"),
        ],
    ),
    (
        "Gist/UNKNOWN",
        &[
            (0x00, "Gist/PAGE_UPDATE"),
            (0x10, "Gist/DELETE"),
            (0x20, "Gist/PAGE_REUSE"),
            (0x30, "Gist/PAGE_SPLIT"),
            (0x60, "Gist/PAGE_DELETE"),
            (0x70, "Gist/ASSIGN_LSN"),
        ],
    ),
    ("Sequence/UNKNOWN", &[(0x00, "Sequence/LOG")]),
    (
        "SPGist/UNKNOWN",
        &[
            (0x10, "SPGist/ADD_LEAF"),
            (0x20, "SPGist/MOVE_LEAFS"),
            (0x30, "SPGist/ADD_NODE"),
            (0x40, "SPGist/SPLIT_TUPLE"),
            (0x50, "SPGist/PICKSPLIT"),
            (0x60, "SPGist/VACUUM_LEAF"),
            (0x70, "SPGist/VACUUM_ROOT"),
            (0x80, "SPGist/VACUUM_REDIRECT"),
        ],
    ),
    (
        "BRIN/UNKNOWN",
        &[
            (0x00, "BRIN/CREATE_INDEX"),
            (0x10, "BRIN/INSERT"),
            (0x90, "BRIN/INSERT+INIT"),
            (0x20, "BRIN/UPDATE"),
            (0xA0, "BRIN/UPDATE+INIT"),
            (0x30, "BRIN/SAMEPAGE_UPDATE"),
            (0x40, "BRIN/REVMAP_EXTEND"),
            (0x50, "BRIN/DESUMMARIZE"),
        ],
    ),
    ("CommitTs/UNKNOWN", &[(0x00, "CommitTs/ZEROPAGE"), (0x10, "CommitTs/TRUNCATE")]),
    ("ReplicationOrigin/UNKNOWN", &[(0x00, "ReplicationOrigin/SET"), (0x10, "ReplicationOrigin/DROP")]),
    ("Generic/UNKNOWN", &[(0x00, "Generic/Generic")]),
    ("LogicalMessage/UNKNOWN", &[(0x00, "LogicalMessage/MESSAGE")]),
];
