//! Messages of the client: encoding and decoding.

mod decode;
mod startup;
#[cfg(test)]
mod tests;

use bytes::{BufMut, BytesMut};

pub use decode::{FrontendMessage, Target};
pub(crate) use startup::is_tls;
pub use startup::{CANCEL_CODE, GSSENC_CODE, SSL_CODE, StartupPacket, StartupParameters, startup_len};

use crate::framing::{put_cstr, put_message};

/// Encodes the client's messages; each function appends one.
pub mod put {
    use super::*;

    /// Commands in one string.
    pub fn query(buf: &mut BytesMut, sql: &str) {
        put_message(buf, b'Q', |buf| put_cstr(buf, sql.as_bytes()));
    }

    /// Parses the unnamed statement, without parameters.
    pub fn parse(buf: &mut BytesMut, sql: &str) {
        put_message(buf, b'P', |buf| {
            put_cstr(buf, b"");
            put_cstr(buf, sql.as_bytes());
            buf.put_i16(0);
        });
    }

    /// Binds the unnamed portal to the unnamed statement.
    pub fn bind(buf: &mut BytesMut) {
        put_message(buf, b'B', |buf| {
            put_cstr(buf, b"");
            put_cstr(buf, b"");
            buf.put_i16(0); // parameter formats
            buf.put_i16(0); // parameters
            buf.put_i16(0); // result formats
        });
    }

    /// Asks for the columns of the unnamed statement or portal.
    pub fn describe(buf: &mut BytesMut, target: Target) {
        put_message(buf, b'D', |buf| {
            buf.put_u8(target.byte());
            put_cstr(buf, b"");
        });
    }

    /// Runs the unnamed portal.
    pub fn execute(buf: &mut BytesMut) {
        put_message(buf, b'E', |buf| {
            put_cstr(buf, b"");
            buf.put_i32(0); // rows: all
        });
    }

    /// End of a group of messages.
    pub fn sync(buf: &mut BytesMut) {
        put_message(buf, b'S', |_| ());
    }

    /// Data of a COPY, appended by `write`.
    pub fn copy_data(buf: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
        put_message(buf, b'd', write);
    }

    /// End of a COPY's data.
    pub fn copy_done(buf: &mut BytesMut) {
        put_message(buf, b'c', |_| ());
    }

    /// A password, or its hash.
    pub fn password(buf: &mut BytesMut, password: &[u8]) {
        put_message(buf, b'p', |buf| put_cstr(buf, password));
    }

    /// Choice of a SASL mechanism and its first message.
    pub fn sasl_initial(buf: &mut BytesMut, mechanism: &str, data: &[u8]) {
        put_message(buf, b'p', |buf| {
            put_cstr(buf, mechanism.as_bytes());
            buf.put_i32(i32::try_from(data.len()).unwrap_or(i32::MAX));
            buf.put_slice(data);
        });
    }

    /// A later message of a SASL mechanism.
    pub fn sasl_response(buf: &mut BytesMut, data: &[u8]) {
        put_message(buf, b'p', |buf| buf.put_slice(data));
    }

    /// Ends the session.
    pub fn terminate(buf: &mut BytesMut) {
        put_message(buf, b'X', |_| ());
    }
}
