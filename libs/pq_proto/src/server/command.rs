//! A command, and the state of the extended protocol before it.

use super::prepared::Prepared;

/// A command to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Its text.
    pub text: String,
    /// It came by the extended protocol: the client already knows the columns, and sends Sync itself.
    pub extended: bool,
}

/// State of the extended protocol.
#[derive(Debug, Default)]
pub(super) struct Extended {
    pub(super) prepared: Prepared,
    /// After an error everything is ignored until the client syncs.
    pub(super) skipping: bool,
}
