//! The client's side of a connection.

mod auth;
mod config;
mod connect;
mod error;
mod session;
pub mod simulated;
mod tls;

pub use config::Config;
pub use error::ClientError;
pub(crate) use session::unexpected;
pub use session::{Client, ClientReader, ClientWriter, ResultSet};
