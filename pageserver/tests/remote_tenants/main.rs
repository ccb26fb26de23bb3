//! Tenants in a bucket: crashes at every request, changes of owner, deletion, damage, idleness.

mod crash_points;
mod damaged;
mod golden;
mod owners;
#[path = "../../../engine/tests/remote_support/mod.rs"]
mod remote_support;
mod servers;
mod sources;
#[path = "../../../engine/tests/stack/mod.rs"]
mod stack;
mod waiting;
mod world;
