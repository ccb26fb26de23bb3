//! Names of relations and SLRUs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Block number within a fork, counted in 8 KiB pages.
pub type BlockNumber = u32;

/// Tablespace `pg_default`.
pub const DEFAULT_TABLESPACE: u32 = 1663;
/// Tablespace `pg_global`.
pub const GLOBAL_TABLESPACE: u32 = 1664;

/// Main fork.
pub const MAIN_FORK: u8 = 0;
/// Free space map fork.
pub const FSM_FORK: u8 = 1;
/// Visibility map fork.
pub const VM_FORK: u8 = 2;
/// Init fork of an unlogged relation.
pub const INIT_FORK: u8 = 3;

const FORK_NAMES: [&str; 4] = ["main", "fsm", "vm", "init"];

/// One fork of a relation. `spcnode` is the tablespace's number in keys: its OID if that fits in 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RelTag {
    /// Tablespace.
    pub spcnode: u32,
    /// Database OID, 0 for shared relations.
    pub dbnode: u32,
    /// Relation file number.
    pub relnode: u32,
    /// Fork: 0 main, 1 fsm, 2 vm, 3 init.
    pub forknum: u8,
}

/// The text does not name a relation fork.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid relation {0:?}: expected TABLESPACE/DATABASE/RELATION with an optional _fsm, _vm or _init")]
pub struct RelTagParseError(pub String);

/// The name of fork `forknum`, if there is such a fork.
pub fn fork_name(forknum: u8) -> Option<&'static str> {
    FORK_NAMES.get(usize::from(forknum)).copied()
}

impl RelTag {
    /// The same relation's fork `forknum`.
    pub fn with_fork(self, forknum: u8) -> Self {
        Self { forknum, ..self }
    }
}

impl fmt::Display for RelTag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.spcnode, self.dbnode, self.relnode)?;
        match (self.forknum, fork_name(self.forknum)) {
            (MAIN_FORK, _) => Ok(()),
            (_, Some(name)) => write!(f, "_{name}"),
            (number, None) => write!(f, "_fork{number}"),
        }
    }
}

impl FromStr for RelTag {
    type Err = RelTagParseError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse_rel_tag(text).ok_or_else(|| RelTagParseError(text.to_owned()))
    }
}

fn parse_rel_tag(text: &str) -> Option<RelTag> {
    let (numbers, fork) = text.split_once('_').unwrap_or((text, "main"));
    let forknum = FORK_NAMES.iter().position(|name| *name == fork)? as u8;
    let mut parts = numbers.split('/').map(|part| part.parse::<u32>().ok());
    let rel = RelTag { spcnode: parts.next()??, dbnode: parts.next()??, relnode: parts.next()??, forknum };
    parts.next().is_none().then_some(rel)
}

/// The SLRUs that are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum SlruKind {
    /// `pg_xact`.
    Clog,
    /// `pg_multixact/members`.
    MultiXactMembers,
    /// `pg_multixact/offsets`.
    MultiXactOffsets,
    /// `pg_commit_ts`.
    CommitTs,
}

impl SlruKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [SlruKind; 4] =
        [SlruKind::Clog, SlruKind::MultiXactMembers, SlruKind::MultiXactOffsets, SlruKind::CommitTs];

    /// The number used in keys.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The kind with number `number`.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// The directory below the data directory.
    pub fn dir(self) -> &'static str {
        match self {
            SlruKind::Clog => "pg_xact",
            SlruKind::MultiXactMembers => "pg_multixact/members",
            SlruKind::MultiXactOffsets => "pg_multixact/offsets",
            SlruKind::CommitTs => "pg_commit_ts",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_round_trip() {
        for text in ["1663/5/16384", "1664/0/1262_fsm", "1663/5/1_vm", "1663/5/1_init"] {
            assert_eq!(text.parse::<RelTag>().unwrap().to_string(), text);
        }
        for text in ["", "1/2", "1/2/3/4", "1/2/x", "1/2/3_foo", "1/2/3_"] {
            assert!(text.parse::<RelTag>().is_err(), "{text}");
        }
    }

    #[test]
    fn slru_numbers_round_trip() {
        for kind in SlruKind::ALL {
            assert_eq!(SlruKind::from_number(kind.number()), Some(kind));
        }
        assert_eq!(SlruKind::from_number(4), None);
    }
}
