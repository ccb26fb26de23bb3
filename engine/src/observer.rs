//! What others keep of the values that come in: the engine knows keys, they know what keys mean.

use std::any::Any;
use std::fmt::Debug;

use utils::lsn::Lsn;
use wal_decoder::serialized_batch::ValueMeta;

/// Is told of the values that come into one timeline while it is open.
pub trait WriteObserver: Any + Debug + Send + Sync {
    /// A batch comes in: its LSNs count as written only after this returns. It may be refused yet.
    fn note(&self, values: &[ValueMeta]);
}

/// Makes the observer of a timeline that is opened. It sees no value up to the LSN, and all that come after it.
pub type NewObserver = fn(opened_at: Lsn) -> Box<dyn WriteObserver>;
