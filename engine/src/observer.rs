//! Lets callers track the values written to a timeline: the engine knows keys, its callers know what keys mean.

use std::any::Any;
use std::fmt::Debug;

use utils::lsn::Lsn;
use wal_decoder::serialized_batch::ValueMeta;

/// Notified of the values written to one timeline while it is open.
pub trait WriteObserver: Any + Debug + Send + Sync {
    /// Called with each batch before its LSNs count as written. The batch may still be refused afterwards.
    fn note(&self, values: &[ValueMeta]);
}

/// Creates the observer of a timeline when it is opened. It sees all values after `opened_at`, and none up to it.
pub type NewObserver = fn(opened_at: Lsn) -> Box<dyn WriteObserver>;
