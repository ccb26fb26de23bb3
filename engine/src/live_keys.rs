//! Which keys are still in use: the engine knows keys, its callers know what keys mean.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::pin::Pin;

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;

use errors::StorageError;

/// What is still to be read.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StorageError>> + Send + 'a>>;

/// A timeline's values as of one LSN.
pub trait Values: Debug + Send + Sync {
    /// The values of all keys in `keys` that have one.
    fn get_many<'a>(&'a self, keys: &'a KeySpace) -> Answer<'a, BTreeMap<Key, Bytes>>;
}

/// Knows which keys may be asked for.
///
/// Images omit all other keys, and layers with nothing else go when the LSN is the oldest that is kept. So a key that
/// is not live at an LSN must get a version that needs no earlier one before it is live again.
pub trait LiveKeys: Debug + Send + Sync {
    /// The keys that may be asked for as of the LSN of `values`.
    fn of<'a>(&'a self, values: &'a dyn Values) -> Answer<'a, KeySpace>;
}
