//! The Postgres wire protocol, version 3: messages, the server's side of a connection, and the client's side as far as
//! physical replication needs it.
#![forbid(unsafe_code)]
