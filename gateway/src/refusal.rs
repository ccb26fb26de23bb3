//! Errors that a client sees.

use std::time::Duration;

use pq_proto::backend::ErrorFields;
use pq_proto::sqlstate::SqlState;

use crate::fleet::Refused;

/// A message that ends the connection.
pub(crate) fn fatal(code: SqlState, message: impl Into<String>) -> ErrorFields {
    ErrorFields { severity: "FATAL".to_owned(), ..ErrorFields::new(code, message) }
}

fn with_hint(error: ErrorFields, hint: impl Into<String>) -> ErrorFields {
    ErrorFields { hint: Some(hint.into()), ..error }
}

/// The client has not said which branch it wants.
pub(crate) fn no_branch() -> ErrorFields {
    let error = fatal(SqlState::INVALID_AUTHORIZATION, "the connection names no branch");
    with_hint(error, "Say options=-cbranch=NAME, or user=ROLE@NAME.")
}

/// Too many connections, of which kind `what` says.
pub(crate) fn too_many(what: &str) -> ErrorFields {
    fatal(SqlState::TOO_MANY_CONNECTIONS, format!("too many connections {what}"))
}

/// A compute did not answer in time.
pub(crate) fn late(place: &str, limit: Duration) -> ErrorFields {
    let message = format!("the compute of {place} is not ready after {limit:?}");
    with_hint(fatal(SqlState::CANNOT_CONNECT_NOW, message), "It goes on starting: try again.")
}

impl From<Refused> for ErrorFields {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Missing { message, hint } => with_hint(fatal(SqlState::INVALID_CATALOG_NAME, message), hint),
            Refused::Unavailable { message, hint } => {
                let error = fatal(SqlState::CANNOT_CONNECT_NOW, message);
                ErrorFields { hint, ..error }
            }
        }
    }
}
