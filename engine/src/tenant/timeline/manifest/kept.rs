//! What a manifest says of moments that stay readable, and of when history arrived.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use utils::lsn::Lsn;

use crate::config::RetentionPolicy;

/// An LSN that stays readable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hold {
    /// The LSN.
    pub lsn: Lsn,
    /// Until when, in seconds since 1970; `None` until it is deleted.
    pub until: Option<u64>,
    /// Its name; that of a lease is empty.
    pub name: String,
}

/// How much history one timeline keeps, where that differs from the settings of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// What arrived within this many seconds is kept.
    pub pitr_interval: Option<u64>,
    /// So many bytes of WAL are kept, whenever they arrived.
    pub gc_horizon: Option<u64>,
    /// History goes beyond so many bytes of WAL, however new it is; 0 is no limit.
    pub history_max_bytes: Option<u64>,
}

impl Limits {
    /// What holds for a timeline with these limits on a server with this policy.
    pub fn over(&self, server: &RetentionPolicy) -> RetentionPolicy {
        RetentionPolicy {
            pitr_interval: self.pitr_interval.map_or(server.pitr_interval, Duration::from_secs),
            gc_horizon: self.gc_horizon.unwrap_or(server.gc_horizon),
            history_max_bytes: self.history_max_bytes.unwrap_or(server.history_max_bytes),
            ..server.clone()
        }
    }
}

/// See the module's documentation. Manifests up to version 5 end where this begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Holds and leases.
    pub holds: Vec<Hold>,
    /// Ascending: at a time, in seconds since 1970, everything up to an LSN had arrived.
    pub arrived: Vec<(u64, Lsn)>,
    /// How much history is kept.
    pub limits: Limits,
    /// When the timeline was archived, in seconds since 1970: it takes in nothing, and only its end is kept.
    pub archived_at: Option<u64>,
}
