//! Layers that are in a bucket: reading them, evicting and fetching them, and healing.

mod memory;
mod reads;
mod residency;
mod scans;
mod store;
mod timeline;
mod world;
