//! Why a server is not attached.

use pq_proto::client::ClientError;

use crate::errors::StorageError;
use crate::tenant::manager::ManageError;

/// Why a server was not attached.
#[derive(Debug, thiserror::Error)]
pub(super) enum AttachError {
    #[error("{0}")]
    Client(#[from] ClientError),
    #[error("{0}")]
    Storage(#[from] StorageError),
    #[error("{0}")]
    Manage(#[from] ManageError),
    #[error("{0}")]
    Refused(String),
    #[error("cancelled")]
    Cancelled,
}
