//! The content of an ErrorResponse or NoticeResponse.

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::error::ProtocolError;
use crate::fields::Fields;
use crate::framing::put_cstr;
use crate::sqlstate::SqlState;

/// An error that a server reports.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ErrorFields {
    /// ERROR, FATAL, PANIC, or for a notice WARNING, NOTICE and others.
    pub severity: String,
    /// The kind of error.
    pub code: SqlState,
    /// What happened.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where in the query, in characters from 1 on.
    pub position: Option<u32>,
}

impl fmt::Display for ErrorFields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} (SQLSTATE {})", self.severity, self.message, self.code)?;
        for (name, text) in [("detail", &self.detail), ("hint", &self.hint)] {
            if let Some(text) = text {
                write!(f, "; {name}: {text}")?;
            }
        }
        Ok(())
    }
}

impl ErrorFields {
    /// An error without detail or hint.
    pub fn new(code: SqlState, message: impl Into<String>) -> Self {
        Self { severity: "ERROR".to_owned(), code, message: message.into(), detail: None, hint: None, position: None }
    }

    /// Adds a detail.
    pub fn with_detail(self, detail: impl Into<String>) -> Self {
        Self { detail: Some(detail.into()), ..self }
    }

    pub(super) fn encode(&self, buf: &mut BytesMut) {
        let mut field = |name: u8, text: &str| {
            buf.put_u8(name);
            put_cstr(buf, text.as_bytes());
        };
        field(b'S', &self.severity);
        field(b'C', self.code.as_str());
        field(b'M', &self.message);
        self.detail.iter().for_each(|text| field(b'D', text));
        self.hint.iter().for_each(|text| field(b'H', text));
        self.position.iter().for_each(|position| field(b'P', &position.to_string()));
        buf.put_u8(0);
    }

    /// Decodes the fields. Text need not be UTF-8: a server sends its first errors in its own encoding.
    pub(super) fn decode(body: Bytes) -> Result<Self, ProtocolError> {
        let mut fields = Fields::new(body, "ErrorResponse");
        let mut error = Self::new(SqlState::INTERNAL_ERROR, "");
        loop {
            let name = fields.u8()?;
            if name == 0 {
                break;
            }
            let bytes = fields.cstr()?;
            let text = || String::from_utf8_lossy(&bytes).into_owned();
            match name {
                // 'V' comes after 'S' and is the same, untranslated.
                b'S' | b'V' => error.severity = text(),
                b'C' => error.code = SqlState::from_bytes(&bytes),
                b'M' => error.message = text(),
                b'D' => error.detail = Some(text()),
                b'H' => error.hint = Some(text()),
                b'P' => error.position = text().parse().ok(),
                _ => {}
            }
        }
        fields.end()?;
        Ok(error)
    }
}
