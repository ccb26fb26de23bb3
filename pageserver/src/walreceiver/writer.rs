//! Writers: a compute that writes a branch is registered with it, and a branch has at most one.
//!
//! A compute starts where its branch ends, and what it writes from there on arrives by replication, whichever WAL
//! timeline it is on. So it may be registered only while the branch ends where the compute begins: at its start, or
//! when it comes back after having been released. The registration is stored with the timeline and survives restarts
//! of both servers.

use serde::{Deserialize, Serialize};
use utils::lsn::Lsn;

/// A compute that writes a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// Unique id of the compute.
    pub id: String,
    /// Its name, for display.
    pub name: String,
    /// Its WAL is received from here on.
    pub start_lsn: Lsn,
}

/// A compute that wants to write a branch.
#[derive(Clone)]
pub struct NewWriter {
    /// The compute.
    pub writer: Writer,
    /// How to reach it, as a libpq connection string.
    pub connstr: String,
    /// The replication slot to use there.
    pub slot: String,
    /// Replace another compute whose host is lost. Whatever that has not sent is lost, too.
    pub replace: bool,
}
