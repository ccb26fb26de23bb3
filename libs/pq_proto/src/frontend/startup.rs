//! The first packet of a connection, which has no type byte.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use crate::error::ProtocolError;
use crate::fields::Fields;
use crate::framing::{put_cstr, put_length_prefixed};

/// Code of a request for TLS.
pub const SSL_CODE: i32 = (1234 << 16) | 5679;
/// Code of a request for GSSAPI encryption.
pub const GSSENC_CODE: i32 = (1234 << 16) | 5680;
/// Code of a request to cancel another connection's command.
pub const CANCEL_CODE: i32 = (1234 << 16) | 5678;

/// Smallest packet: length and code.
const MIN_LEN: usize = 8;
/// `MAX_STARTUP_PACKET_LENGTH` of Postgres.
const MAX_LEN: usize = 10_000;

/// Content of a client's startup packet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartupParameters {
    /// Minor protocol version: the number after the dot of 3.x.
    pub minor: u16,
    /// Names and values in order of arrival.
    pub parameters: Vec<(String, String)>,
}

impl StartupParameters {
    /// The value of `name`.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.parameters.iter().rev().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }
}

/// The first packet of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StartupPacket {
    /// Requests TLS.
    Ssl,
    /// Requests GSSAPI encryption.
    GssEnc,
    /// Cancels the command of another connection.
    Cancel,
    /// Starts a session.
    Startup(StartupParameters),
}

/// The length of a startup packet, length field included, from its first four bytes.
pub fn startup_len(field: [u8; 4]) -> Result<usize, ProtocolError> {
    let len = i32::from_be_bytes(field);
    let fits = usize::try_from(len).ok().filter(|len| (MIN_LEN..=MAX_LEN).contains(len));
    fits.ok_or(ProtocolError::Length { len: len.into(), min: MIN_LEN, max: MAX_LEN })
}

impl StartupPacket {
    /// Decodes everything after the length.
    pub fn decode(body: Bytes) -> Result<Self, ProtocolError> {
        let mut fields = Fields::new(body, "startup packet");
        match fields.i32()? {
            SSL_CODE => fields.end().map(|()| StartupPacket::Ssl),
            GSSENC_CODE => fields.end().map(|()| StartupPacket::GssEnc),
            CANCEL_CODE => Ok(StartupPacket::Cancel),
            version if version >> 16 == 3 => decode_parameters(fields, version as u16).map(StartupPacket::Startup),
            _ => Err(ProtocolError::Malformed("startup packet: only protocol version 3 is supported")),
        }
    }

    /// Appends the packet with its length.
    pub fn encode(&self, buf: &mut BytesMut) {
        put_length_prefixed(buf, |buf| match self {
            StartupPacket::Ssl => buf.put_i32(SSL_CODE),
            StartupPacket::GssEnc => buf.put_i32(GSSENC_CODE),
            StartupPacket::Cancel => {
                buf.put_i32(CANCEL_CODE);
                buf.put_i64(0); // process and its secret
            }
            StartupPacket::Startup(startup) => {
                buf.put_i32((3 << 16) | i32::from(startup.minor));
                for (name, value) in &startup.parameters {
                    put_cstr(buf, name.as_bytes());
                    put_cstr(buf, value.as_bytes());
                }
                buf.put_u8(0);
            }
        });
    }
}

/// Names and values up to an empty name. Old clients omit the empty name, which Postgres accepts too.
fn decode_parameters(mut fields: Fields, minor: u16) -> Result<StartupParameters, ProtocolError> {
    let mut parameters = vec![];
    while !fields.is_empty() {
        let name = fields.text()?;
        if name.is_empty() {
            fields.end()?;
            break;
        }
        parameters.push((name, fields.text()?));
    }
    Ok(StartupParameters { minor, parameters })
}

/// Whether these are the first bytes of a TLS handshake instead of a startup packet.
pub(crate) fn is_tls(mut first: &[u8]) -> bool {
    first.try_get_u8().is_ok_and(|byte| byte == 0x16)
}
