//! Decodes messages that a client sends after its startup packet.

use bytes::Bytes;

use crate::error::ProtocolError;
use crate::fields::Fields;
use crate::framing::RawMessage;

/// The target of a Describe or Close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// A prepared statement.
    Statement,
    /// A portal.
    Portal,
}

impl Target {
    pub(super) fn byte(self) -> u8 {
        match self {
            Target::Statement => b'S',
            Target::Portal => b'P',
        }
    }
}

/// A message of a client. Of the extended protocol only what works without names and parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendMessage {
    /// Commands in one string.
    Query(String),
    /// Text of the unnamed statement.
    Parse(String),
    /// The unnamed portal for the unnamed statement.
    Bind,
    /// Ask for the columns of the unnamed statement or portal.
    Describe(Target),
    /// Run the unnamed portal.
    Execute,
    /// Close a statement or portal.
    Close(Target),
    /// Send what is buffered.
    Flush,
    /// End of a group of messages.
    Sync,
    /// Data of a COPY.
    CopyData(Bytes),
    /// End of a COPY's data.
    CopyDone,
    /// The client aborts a COPY, with its reason.
    CopyFail(String),
    /// Password with its NUL, or SASL data.
    Password(Bytes),
    /// The client ends the session.
    Terminate,
}

impl FrontendMessage {
    /// Decodes a message.
    pub fn decode(raw: RawMessage) -> Result<Self, ProtocolError> {
        use FrontendMessage::*;
        let body = raw.body;
        Ok(match raw.tag {
            b'd' => CopyData(body),
            b'Q' => Query(whole_text(body, "Query")?),
            b'P' => Parse(decode_parse(body)?),
            b'B' => decode_bind(body)?,
            b'D' => Describe(decode_target(body, "Describe")?),
            b'C' => Close(decode_target(body, "Close")?),
            b'E' => decode_execute(body)?,
            b'H' => nothing(body, "Flush", Flush)?,
            b'S' => nothing(body, "Sync", Sync)?,
            b'c' => nothing(body, "CopyDone", CopyDone)?,
            b'f' => CopyFail(whole_text(body, "CopyFail")?),
            b'p' => Password(body),
            b'X' => nothing(body, "Terminate", Terminate)?,
            tag => return Err(ProtocolError::UnknownTag(tag)),
        })
    }

    /// The message's type byte as a character, for errors.
    pub fn tag(&self) -> char {
        use FrontendMessage::*;
        match self {
            Query(_) => 'Q',
            Parse(_) => 'P',
            Bind => 'B',
            Describe(_) => 'D',
            Execute => 'E',
            Close(_) => 'C',
            Flush => 'H',
            Sync => 'S',
            CopyData(_) => 'd',
            CopyDone => 'c',
            CopyFail(_) => 'f',
            Password(_) => 'p',
            Terminate => 'X',
        }
    }
}

fn nothing(body: Bytes, name: &'static str, message: FrontendMessage) -> Result<FrontendMessage, ProtocolError> {
    if body.is_empty() { Ok(message) } else { Err(ProtocolError::Malformed(name)) }
}

fn whole_text(body: Bytes, name: &'static str) -> Result<String, ProtocolError> {
    let mut fields = Fields::new(body, name);
    let text = fields.text()?;
    fields.end()?;
    Ok(text)
}

/// Names are not supported: the only statement and the only portal are unnamed.
fn unnamed(fields: &mut Fields) -> Result<(), ProtocolError> {
    if fields.cstr()?.is_empty() { Ok(()) } else { Err(fields.malformed()) }
}

fn decode_parse(body: Bytes) -> Result<String, ProtocolError> {
    let mut fields = Fields::new(body, "Parse: only the unnamed statement without parameters is supported");
    unnamed(&mut fields)?;
    let text = fields.text()?;
    if fields.i16()? != 0 {
        return Err(fields.malformed());
    }
    fields.end()?;
    Ok(text)
}

fn decode_bind(body: Bytes) -> Result<FrontendMessage, ProtocolError> {
    let mut fields = Fields::new(body, "Bind: only the unnamed portal and statement without parameters are supported");
    unnamed(&mut fields)?;
    unnamed(&mut fields)?;
    skip_formats(&mut fields)?;
    if fields.i16()? != 0 {
        return Err(fields.malformed());
    }
    skip_formats(&mut fields)?;
    fields.end()?;
    Ok(FrontendMessage::Bind)
}

/// Skips result formats: results are always text, whatever the client requests.
fn skip_formats(fields: &mut Fields) -> Result<(), ProtocolError> {
    let count = usize::try_from(fields.i16()?).map_err(|_| fields.malformed())?;
    fields.bytes(2 * count).map(drop)
}

fn decode_target(body: Bytes, name: &'static str) -> Result<Target, ProtocolError> {
    let mut fields = Fields::new(body, name);
    let target = match fields.u8()? {
        b'S' => Target::Statement,
        b'P' => Target::Portal,
        _ => return Err(fields.malformed()),
    };
    unnamed(&mut fields)?;
    fields.end()?;
    Ok(target)
}

fn decode_execute(body: Bytes) -> Result<FrontendMessage, ProtocolError> {
    let mut fields = Fields::new(body, "Execute: only the unnamed portal without a row limit is supported");
    unnamed(&mut fields)?;
    if fields.i32()? != 0 {
        return Err(fields.malformed());
    }
    fields.end()?;
    Ok(FrontendMessage::Execute)
}
