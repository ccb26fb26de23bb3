//! Computes as writers: whoever writes a branch is registered with it, and there is one at most.
//!
//! A compute starts where its branch ends, and what it writes from there on comes by replication, whichever timeline of
//! its own Postgres is on. So it may only be registered while the branch ends where the compute begins: at its start,
//! or when it comes back after it was released. The registration is stored with the timeline, and outlives both
//! servers.

use serde::{Deserialize, Serialize};
use utils::lsn::Lsn;

/// A compute that writes a branch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Writer {
    /// What tells it from all others.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// Its WAL is taken from here on.
    pub start_lsn: Lsn,
}

/// A compute that wants to write a branch.
#[derive(Clone)]
pub struct NewWriter {
    /// The compute.
    pub writer: Writer,
    /// How to reach it.
    pub connstr: String,
    /// The replication slot to use there.
    pub slot: String,
    /// Take the place of another compute, whose host is lost. What it has not sent is lost, too.
    pub replace: bool,
}
