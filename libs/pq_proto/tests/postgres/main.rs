//! The client against a real Postgres: authentication, TLS, replication.

mod login;
mod replicate;
