//! Major versions and what differs between them.

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
