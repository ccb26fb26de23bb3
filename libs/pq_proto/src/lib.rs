//! The Postgres wire protocol, version 3: messages, the server's side of a connection, and the client's side as far
//! as physical replication needs it.
//!
//! Formats: `src/include/libpq/pqcomm.h`, `protocol.h` and the chapter "Frontend/Backend Protocol" of Postgres. All
//! integers are big-endian. Decoding is total: any bytes yield a value or an [`error::ProtocolError`], and no message
//! makes the receiver allocate more than its declared limit.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

pub mod backend;
pub mod client;
pub mod error;
mod fields;
pub mod framing;
pub mod frontend;
pub mod replication;
pub mod server;
pub mod sqlstate;
pub mod stream;
