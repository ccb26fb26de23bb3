//! Major versions and their differences.

/// A PostgreSQL major version that this program can read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum PgVersion {
    /// PostgreSQL 14.
    V14 = 14,
    /// PostgreSQL 15.
    V15 = 15,
    /// PostgreSQL 16.
    V16 = 16,
    /// PostgreSQL 17.
    V17 = 17,
    /// PostgreSQL 18.
    V18 = 18,
}

impl PgVersion {
    /// All versions, oldest first.
    pub const ALL: [Self; 5] = [Self::V14, Self::V15, Self::V16, Self::V17, Self::V18];

    /// The version with major number `major`, if this program can read it.
    pub fn from_major(major: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.major() == major)
    }

    /// The version whose WAL pages start with `magic`.
    pub fn from_wal_magic(magic: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|version| version.wal_magic() == magic)
    }

    /// The major number.
    pub const fn major(self) -> u32 {
        self as u32
    }

    /// `XLOG_PAGE_MAGIC`: the first two bytes of every WAL page.
    pub const fn wal_magic(self) -> u16 {
        match self {
            Self::V14 => 0xD10D,
            Self::V15 => 0xD110,
            Self::V16 => 0xD113,
            Self::V17 => 0xD116,
            Self::V18 => 0xD118,
        }
    }

    /// `PG_CONTROL_VERSION`.
    pub const fn control_version(self) -> u32 {
        match self {
            Self::V14 | Self::V15 | Self::V16 => 1300,
            Self::V17 => 1700,
            Self::V18 => 1800,
        }
    }

    /// `CATALOG_VERSION_NO` of the released major version.
    pub const fn catalog_version(self) -> u32 {
        match self {
            Self::V14 => 202_107_181,
            Self::V15 => 202_209_061,
            Self::V16 => 202_307_071,
            Self::V17 => 202_406_281,
            Self::V18 => 202_506_291,
        }
    }

    /// Whether WAL records contain SLRU page numbers as 64-bit integers (17 and later).
    pub const fn wide_slru_pages(self) -> bool {
        self as u8 >= Self::V17 as u8
    }
}
