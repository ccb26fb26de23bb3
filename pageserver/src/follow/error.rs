//! Why a server cannot be followed.

use pq_proto::client::ClientError;

use engine::tenant::manager::ManageError;
use errors::StorageError;

/// Why a server cannot be followed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FollowError {
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
