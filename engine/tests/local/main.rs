//! Timelines on a local disk, real or simulated: branches, damage, crashes, refused writes, retention. In one program,
//! as each takes a minute to build.

#[path = "../sim/mod.rs"]
mod sim;
#[path = "../stack/mod.rs"]
mod stack;

mod branches;
mod corruption;
mod crash_points;
mod detach;
mod idle_layers;
mod image_layer;
mod l0_limit;
mod refusals;
mod retention;
mod sealing;
mod shares;
mod timeline_recovery;
mod young_pages;
