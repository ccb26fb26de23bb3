//! Tenants in a bucket: crashes at every request, other owners, deletion, damage, idleness.

mod crash_points;
mod owners;
#[path = "../remote_support/mod.rs"]
mod remote_support;
#[path = "../stack/mod.rs"]
mod stack;
mod waiting;
mod world;
