//! The page service as clients see it, over TCP, on data of a real Postgres.

mod backups;
mod boot_images;
mod fixture;
mod sessions;
mod streams;
