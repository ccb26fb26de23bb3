//! What tests and simulations put in the place of the world: a disk that tears, loses and damages what is written, a
//! bucket that fails, chance from a seed, and a model of the history that a timeline must hold.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod aged;
mod bodies;
pub mod bucket;
pub mod disk;
pub mod model;
pub mod platter;
pub mod random;
