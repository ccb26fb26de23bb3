//! Cold layers: reading, evicting and downloading them, and healing.

mod memory;
mod reads;
mod residency;
mod scans;
mod store;
mod timeline;
mod views;
mod world;
