//! Text of replication commands, and their results.

use crate::backend::Row;
use crate::client::ClientError;
use crate::error::ProtocolError;

/// A name in double quotes.
pub(super) fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Text in single quotes.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Column `index` of a row as text; `None` if NULL or absent.
pub(super) fn text(row: &Row, index: usize) -> Option<String> {
    let bytes = row.get(index)?.as_ref()?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// Column `index` of a row, which must have a value of this type.
pub(super) fn parse<T: std::str::FromStr>(row: &Row, index: usize, what: &'static str) -> Result<T, ClientError> {
    let value = text(row, index).and_then(|text| text.parse().ok());
    value.ok_or(ClientError::Protocol(ProtocolError::Malformed(what)))
}
