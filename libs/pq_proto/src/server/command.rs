//! A command, and what a client of the extended protocol has said before it.

/// A command to be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// Its text.
    pub text: String,
    /// It came by the extended protocol: the client has been told the columns, and syncs by itself.
    pub extended: bool,
}

/// State of the extended protocol.
#[derive(Debug, Default)]
pub(super) struct Extended {
    /// Text of the unnamed statement.
    pub(super) statement: Option<String>,
    /// After an error all is ignored until the client syncs.
    pub(super) skipping: bool,
}
