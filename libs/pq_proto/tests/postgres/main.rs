//! The client against a real Postgres: authentication, TLS, replication.

mod login;
mod replicate;
#[allow(dead_code, reason = "shared with other tests")]
mod server;
