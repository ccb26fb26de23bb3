//! Synchronization between tasks.

pub mod gate;
