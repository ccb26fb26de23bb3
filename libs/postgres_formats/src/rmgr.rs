//! Resource managers: their ids, and the names of their records as `pg_waldump` prints them.

mod names;

pub use names::record_name;

/// Id of a resource manager (`xl_rmid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmgrId(pub u8);

macro_rules! rmgr_ids {
    ($($konst:ident = $id:literal $name:literal,)*) => {
        impl RmgrId {
            $(
                #[doc = concat!("Resource manager `", $name, "`.")]
                pub const $konst: Self = Self($id);
            )*

            /// The name that `pg_waldump` prints; `custom` for extensions' resource managers.
            pub const fn name(self) -> &'static str {
                match self.0 {
                    $($id => $name,)*
                    128.. => "custom",
                    _ => "unknown",
                }
            }
        }
    };
}

rmgr_ids! {
    XLOG = 0 "XLOG",
    XACT = 1 "Transaction",
    SMGR = 2 "Storage",
    CLOG = 3 "CLOG",
    DBASE = 4 "Database",
    TBLSPC = 5 "Tablespace",
    MULTIXACT = 6 "MultiXact",
    RELMAP = 7 "RelMap",
    STANDBY = 8 "Standby",
    HEAP2 = 9 "Heap2",
    HEAP = 10 "Heap",
    BTREE = 11 "Btree",
    HASH = 12 "Hash",
    GIN = 13 "Gin",
    GIST = 14 "Gist",
    SEQ = 15 "Sequence",
    SPGIST = 16 "SPGist",
    BRIN = 17 "BRIN",
    COMMIT_TS = 18 "CommitTs",
    REPLORIGIN = 19 "ReplicationOrigin",
    GENERIC = 20 "Generic",
    LOGICALMSG = 21 "LogicalMessage",
}

impl RmgrId {
    /// The highest id that is built into the server (`RM_MAX_BUILTIN_ID`).
    pub const MAX_BUILTIN: u8 = 21;

    /// Whether a record of this version may carry this id: a built-in one, or (15 and later) an extension's.
    pub const fn is_valid(self, version: crate::version::PgVersion) -> bool {
        self.0 <= Self::MAX_BUILTIN || (self.0 >= 128 && version as u8 >= 15)
    }
}
