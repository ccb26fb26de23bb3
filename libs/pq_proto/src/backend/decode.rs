//! Decodes messages of a server.

use bytes::Bytes;

use super::ErrorFields;
use crate::error::ProtocolError;
use crate::fields::Fields;
use crate::framing::RawMessage;

/// How the server wants the client to authenticate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Authentication {
    /// Authentication is complete.
    Ok,
    /// The password in clear text.
    Cleartext,
    /// The password's hash with this salt.
    Md5([u8; 4]),
    /// One of these SASL mechanisms.
    Sasl(Vec<String>),
    /// Next step of the SASL mechanism.
    SaslContinue(Bytes),
    /// Last step of the SASL mechanism.
    SaslFinal(Bytes),
    /// An unsupported method (Kerberos, SSPI...).
    Other(i32),
}

/// One row in text format; `None` is NULL.
pub type Row = Vec<Option<Bytes>>;

/// A message of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "named as in the protocol's documentation")]
pub enum BackendMessage {
    Authentication(Authentication),
    BackendKeyData,
    BindComplete,
    CloseComplete,
    CommandComplete(String),
    CopyBothResponse,
    CopyData(Bytes),
    CopyDone,
    CopyInResponse,
    CopyOutResponse,
    DataRow(Row),
    EmptyQueryResponse,
    ErrorResponse(ErrorFields),
    NegotiateProtocolVersion,
    NoData,
    NoticeResponse(ErrorFields),
    NotificationResponse,
    ParameterDescription,
    ParameterStatus {
        name: String,
        value: String,
    },
    ParseComplete,
    ReadyForQuery,
    /// Names of the columns.
    RowDescription(Vec<String>),
}

impl BackendMessage {
    /// Decodes a message.
    pub fn decode(raw: RawMessage) -> Result<Self, ProtocolError> {
        use BackendMessage::*;
        let body = raw.body;
        Ok(match raw.tag {
            b'd' => CopyData(body),
            b'R' => Authentication(decode_authentication(body)?),
            b'K' => BackendKeyData,
            b'2' => BindComplete,
            b'3' => CloseComplete,
            b'C' => CommandComplete(decode_text(body, "CommandComplete")?),
            b'W' => CopyBothResponse,
            b'c' => CopyDone,
            b'G' => CopyInResponse,
            b'H' => CopyOutResponse,
            b'D' => DataRow(decode_row(body)?),
            b'I' => EmptyQueryResponse,
            b'E' => ErrorResponse(ErrorFields::decode(body)?),
            b'v' => NegotiateProtocolVersion,
            b'n' => NoData,
            b'N' => NoticeResponse(ErrorFields::decode(body)?),
            b'A' => NotificationResponse,
            b't' => ParameterDescription,
            b'S' => decode_parameter(body)?,
            b'1' => ParseComplete,
            b'Z' => ReadyForQuery,
            b'T' => RowDescription(decode_columns(body)?),
            tag => return Err(ProtocolError::UnknownTag(tag)),
        })
    }

    /// The message's type byte as a character, for errors.
    pub fn tag(&self) -> char {
        use BackendMessage::*;
        match self {
            Authentication(_) => 'R',
            BackendKeyData => 'K',
            BindComplete => '2',
            CloseComplete => '3',
            CommandComplete(_) => 'C',
            CopyBothResponse => 'W',
            CopyData(_) => 'd',
            CopyDone => 'c',
            CopyInResponse => 'G',
            CopyOutResponse => 'H',
            DataRow(_) => 'D',
            EmptyQueryResponse => 'I',
            ErrorResponse(_) => 'E',
            NegotiateProtocolVersion => 'v',
            NoData => 'n',
            NoticeResponse(_) => 'N',
            NotificationResponse => 'A',
            ParameterDescription => 't',
            ParameterStatus { .. } => 'S',
            ParseComplete => '1',
            ReadyForQuery => 'Z',
            RowDescription(_) => 'T',
        }
    }
}

fn decode_authentication(body: Bytes) -> Result<Authentication, ProtocolError> {
    let mut fields = Fields::new(body, "Authentication");
    Ok(match fields.i32()? {
        0 => Authentication::Ok,
        3 => Authentication::Cleartext,
        5 => Authentication::Md5([fields.u8()?, fields.u8()?, fields.u8()?, fields.u8()?]),
        10 => {
            let mut mechanisms = vec![];
            loop {
                match fields.text()? {
                    name if name.is_empty() => break Authentication::Sasl(mechanisms),
                    name => mechanisms.push(name),
                }
            }
        }
        11 => Authentication::SaslContinue(fields.rest()),
        12 => Authentication::SaslFinal(fields.rest()),
        other => Authentication::Other(other),
    })
}

fn decode_text(body: Bytes, message: &'static str) -> Result<String, ProtocolError> {
    let mut fields = Fields::new(body, message);
    let text = fields.text()?;
    fields.end()?;
    Ok(text)
}

fn decode_parameter(body: Bytes) -> Result<BackendMessage, ProtocolError> {
    let mut fields = Fields::new(body, "ParameterStatus");
    let (name, value) = (fields.cstr()?, fields.cstr()?);
    fields.end()?;
    let text = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned();
    Ok(BackendMessage::ParameterStatus { name: text(name), value: text(value) })
}

fn decode_row(body: Bytes) -> Result<Row, ProtocolError> {
    let mut fields = Fields::new(body, "DataRow");
    let count = fields.i16()?;
    let row = (0..count).map(|_| fields.nullable()).collect::<Result<_, _>>()?;
    fields.end()?;
    Ok(row)
}

fn decode_columns(body: Bytes) -> Result<Vec<String>, ProtocolError> {
    let mut fields = Fields::new(body, "RowDescription");
    let count = fields.i16()?;
    let mut columns = vec![];
    for _ in 0..count {
        columns.push(fields.text()?);
        fields.bytes(4 + 2 + 4 + 2 + 4 + 2)?;
    }
    fields.end()?;
    Ok(columns)
}
