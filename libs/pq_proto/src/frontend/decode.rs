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

/// A message of a client. Of the extended protocol only what works without parameters; limits of rows are
/// ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrontendMessage {
    /// Commands in one string.
    Query(String),
    /// Prepare a statement; an empty name is that of the unnamed one, here and below.
    Parse {
        /// The statement's name.
        name: String,
        /// Its text.
        text: String,
    },
    /// Make a portal of a statement.
    Bind {
        /// The portal's name.
        portal: String,
        /// That of the statement.
        statement: String,
    },
    /// Ask for the columns of the statement or portal of this name.
    Describe(Target, String),
    /// Run a portal.
    Execute {
        /// Its name.
        portal: String,
    },
    /// Close the statement or portal of this name.
    Close(Target, String),
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
            b'P' => decode_parse(body)?,
            b'B' => decode_bind(body)?,
            b'D' => decode_target(body, "Describe").map(|(target, name)| Describe(target, name))?,
            b'C' => decode_target(body, "Close").map(|(target, name)| Close(target, name))?,
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
            Parse { .. } => 'P',
            Bind { .. } => 'B',
            Describe(..) => 'D',
            Execute { .. } => 'E',
            Close(..) => 'C',
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

fn decode_parse(body: Bytes) -> Result<FrontendMessage, ProtocolError> {
    let mut fields = Fields::new(body, "Parse: parameters are not supported");
    let name = fields.text()?;
    let text = fields.text()?;
    if fields.i16()? != 0 {
        return Err(fields.malformed());
    }
    fields.end()?;
    Ok(FrontendMessage::Parse { name, text })
}

fn decode_bind(body: Bytes) -> Result<FrontendMessage, ProtocolError> {
    let mut fields = Fields::new(body, "Bind: parameters are not supported");
    let portal = fields.text()?;
    let statement = fields.text()?;
    skip_formats(&mut fields)?;
    if fields.i16()? != 0 {
        return Err(fields.malformed());
    }
    skip_formats(&mut fields)?;
    fields.end()?;
    Ok(FrontendMessage::Bind { portal, statement })
}

/// Skips result formats: results are always text, whatever the client requests.
fn skip_formats(fields: &mut Fields) -> Result<(), ProtocolError> {
    let count = usize::try_from(fields.i16()?).map_err(|_| fields.malformed())?;
    fields.bytes(2 * count).map(drop)
}

fn decode_target(body: Bytes, name: &'static str) -> Result<(Target, String), ProtocolError> {
    let mut fields = Fields::new(body, name);
    let target = match fields.u8()? {
        b'S' => Target::Statement,
        b'P' => Target::Portal,
        _ => return Err(fields.malformed()),
    };
    let name = fields.text()?;
    fields.end()?;
    Ok((target, name))
}

fn decode_execute(body: Bytes) -> Result<FrontendMessage, ProtocolError> {
    let mut fields = Fields::new(body, "Execute");
    let portal = fields.text()?;
    // The limit of rows: no command answers with more than one, and drivers that want the first one ask for one.
    let _limit = fields.i32()?;
    fields.end()?;
    Ok(FrontendMessage::Execute { portal })
}
