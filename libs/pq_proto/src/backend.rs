//! Messages of the server: encoding here, decoding in [`decode`](self::BackendMessage).

mod decode;
mod error_fields;
#[cfg(test)]
mod tests;

use bytes::{BufMut, BytesMut};

pub use decode::{Authentication, BackendMessage, Row};
pub use error_fields::ErrorFields;

use crate::framing::{put_cstr, put_message};

/// Type OID of `text`.
const TEXT_OID: i32 = 25;
/// Protocol version 3.0 as an integer.
const VERSION_3_0: i32 = 3 << 16;

/// Encodes the server's messages; each function appends one.
pub mod put {
    use super::*;

    /// The client is authenticated.
    pub fn authentication_ok(buf: &mut BytesMut) {
        put_message(buf, b'R', |buf| buf.put_i32(0));
    }

    /// Asks the client for its password in clear text.
    pub fn authentication_cleartext(buf: &mut BytesMut) {
        put_message(buf, b'R', |buf| buf.put_i32(3));
    }

    /// The value of a setting.
    pub fn parameter_status(buf: &mut BytesMut, name: &str, value: &str) {
        put_message(buf, b'S', |buf| {
            put_cstr(buf, name.as_bytes());
            put_cstr(buf, value.as_bytes());
        });
    }

    /// The server speaks only 3.0 and does not know these options.
    pub fn negotiate_protocol_version<'a>(buf: &mut BytesMut, unknown: impl ExactSizeIterator<Item = &'a str>) {
        put_message(buf, b'v', |buf| {
            buf.put_i32(VERSION_3_0);
            buf.put_i32(i32::try_from(unknown.len()).unwrap_or(i32::MAX));
            unknown.for_each(|name| put_cstr(buf, name.as_bytes()));
        });
    }

    /// The server waits for a command, outside any transaction.
    pub fn ready_for_query(buf: &mut BytesMut) {
        put_message(buf, b'Z', |buf| buf.put_u8(b'I'));
    }

    /// Columns of type text.
    pub fn row_description(buf: &mut BytesMut, columns: &[&str]) {
        put_message(buf, b'T', |buf| {
            put_count(buf, columns.len());
            for name in columns {
                put_cstr(buf, name.as_bytes());
                buf.put_i32(0); // table
                buf.put_i16(0); // its column
                buf.put_i32(TEXT_OID);
                buf.put_i16(-1); // length: variable
                buf.put_i32(-1); // type modifier
                buf.put_i16(0); // text format
            }
        });
    }

    /// One row; `None` is NULL.
    pub fn data_row(buf: &mut BytesMut, columns: &[Option<&[u8]>]) {
        put_message(buf, b'D', |buf| {
            put_count(buf, columns.len());
            for column in columns {
                match column {
                    None => buf.put_i32(-1),
                    Some(value) => {
                        buf.put_i32(i32::try_from(value.len()).unwrap_or(i32::MAX));
                        buf.put_slice(value);
                    }
                }
            }
        });
    }

    /// A command is done.
    pub fn command_complete(buf: &mut BytesMut, tag: &str) {
        put_message(buf, b'C', |buf| put_cstr(buf, tag.as_bytes()));
    }

    /// The command was empty.
    pub fn empty_query(buf: &mut BytesMut) {
        put_message(buf, b'I', |_| ());
    }

    /// Starts a COPY in both directions.
    pub fn copy_both(buf: &mut BytesMut) {
        put_copy_response(buf, b'W');
    }

    /// Starts a COPY to the client.
    pub fn copy_out(buf: &mut BytesMut) {
        put_copy_response(buf, b'H');
    }

    /// Data of a COPY, appended by `write`.
    pub fn copy_data(buf: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
        put_message(buf, b'd', write);
    }

    /// End of a COPY's data.
    pub fn copy_done(buf: &mut BytesMut) {
        put_message(buf, b'c', |_| ());
    }

    /// A statement was parsed.
    pub fn parse_complete(buf: &mut BytesMut) {
        put_message(buf, b'1', |_| ());
    }

    /// A portal was created.
    pub fn bind_complete(buf: &mut BytesMut) {
        put_message(buf, b'2', |_| ());
    }

    /// A statement or portal was closed.
    pub fn close_complete(buf: &mut BytesMut) {
        put_message(buf, b'3', |_| ());
    }

    /// A statement has no parameters.
    pub fn no_parameters(buf: &mut BytesMut) {
        put_message(buf, b't', |buf| buf.put_i16(0));
    }

    /// A statement returns no rows.
    pub fn no_data(buf: &mut BytesMut) {
        put_message(buf, b'n', |_| ());
    }

    /// A command failed.
    pub fn error(buf: &mut BytesMut, error: &ErrorFields) {
        put_message(buf, b'E', |buf| error.encode(buf));
    }

    fn put_copy_response(buf: &mut BytesMut, tag: u8) {
        put_message(buf, tag, |buf| {
            buf.put_u8(0); // text format, which does not matter
            buf.put_i16(0); // columns
        });
    }

    fn put_count(buf: &mut BytesMut, count: usize) {
        buf.put_i16(i16::try_from(count).unwrap_or(i16::MAX));
    }
}
