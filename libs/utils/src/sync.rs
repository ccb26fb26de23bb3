//! Synchronization between tasks.

pub mod gate;
pub mod keyed_lock;
