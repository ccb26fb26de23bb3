//! The page service as clients see it, over TCP, on data of a real Postgres.

mod backups;
mod boot_images;
mod fixture;
#[path = "../../../libs/pq_proto/tests/postgres/server.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod server;
mod sessions;
mod streams;
