//! The client's side of a connection.

mod auth;
mod connect;
mod error;
mod session;
pub mod simulated;
mod tls;

pub use error::ClientError;
pub(crate) use session::unexpected;
pub use session::{Client, ClientReader, ClientWriter, ResultSet};
pub use tokio_postgres::Config;
