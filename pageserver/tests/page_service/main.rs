//! The page service as seen by clients, over TCP, with data of a real Postgres.

mod backups;
mod boot_images;
mod fixture;
mod sessions;
mod streams;
