//! Tenants in a bucket: restarts, takeovers, detached branches, late writes. In one program, as each takes a minute to
//! build.

#[path = "../stack/mod.rs"]
mod stack;

mod detach;
mod fencing;
mod late_writes;
mod leftovers;
mod restart;
