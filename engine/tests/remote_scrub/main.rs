//! The local disk as a cache of the bucket: damage in either place is found, named, repaired if there is a good copy,
//! and never served; a small disk serves a large store.

#[path = "../remote_support/mod.rs"]
mod remote_support;
#[path = "../stack/mod.rs"]
mod stack;

mod budget;
mod heal;
mod lost_index;
mod offline;
mod world;
