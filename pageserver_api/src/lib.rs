//! What clients and engine share: keys, values, key spaces, relation tags, shard identity, models.
#![forbid(unsafe_code)]

pub mod key;
pub mod keyspace;
pub mod models;
pub mod parameters;
pub mod record;
pub mod reltag;
pub mod shard;
pub mod value;
