//! Types that clients and the engine share: keys, values, key spaces, relation tags, shard identity, models, messages
//! of the page service.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod boot_image;
pub mod key;
pub mod keyspace;
pub mod models;
pub mod pagestream;
pub mod parameters;
pub mod record;
pub mod reltag;
pub mod shard;
pub mod value;
