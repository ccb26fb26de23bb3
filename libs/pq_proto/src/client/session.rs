//! A session: commands and their results.

use std::collections::HashMap;

use tokio::io::{ReadHalf, WriteHalf};

use crate::backend::{BackendMessage, ErrorFields, Row};
use crate::error::ProtocolError;
use crate::framing::{MessageReader, MessageWriter};
use crate::frontend;
use crate::stream::BoxStream;

use super::error::ClientError;

/// Reads what the server sends.
pub type ClientReader = MessageReader<ReadHalf<BoxStream>>;
/// Writes to the server.
pub type ClientWriter = MessageWriter<WriteHalf<BoxStream>>;

/// Maximum length of a server's message. Base backups and WAL come in pieces of at most 128 KiB; this leaves room for
/// the largest rows and timeline histories.
const MAX_BACKEND_MESSAGE: usize = 16 << 20;

/// The result of one command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultSet {
    /// Names of the columns; empty for a command without rows.
    pub columns: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A connection to a server. Its commands are not cancellation safe: dropping one halfway leaves its answer unread,
/// and the connection becomes unusable.
pub struct Client {
    pub(super) reader: ClientReader,
    pub(super) writer: ClientWriter,
    pub(super) parameters: HashMap<String, String>,
}

impl Client {
    /// A client on a stream whose handshake is not needed or still to come.
    pub(crate) fn over(stream: BoxStream) -> Self {
        let (read, write) = tokio::io::split(stream);
        let (reader, writer) = (MessageReader::new(read, MAX_BACKEND_MESSAGE), MessageWriter::new(write));
        Self { reader, writer, parameters: HashMap::new() }
    }

    /// A setting that the server has reported, such as `server_version`.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.parameters.get(name).map(String::as_str)
    }

    /// Runs the commands of `sql` and collects their results.
    pub async fn simple_query(&mut self, sql: &str) -> Result<Vec<ResultSet>, ClientError> {
        self.send_query(sql).await?;
        let (mut sets, mut open) = (vec![], None::<ResultSet>);
        loop {
            match self.receive().await? {
                BackendMessage::RowDescription(columns) => open = Some(ResultSet { columns, rows: vec![] }),
                BackendMessage::DataRow(row) => open.get_or_insert_default().rows.push(row),
                BackendMessage::CommandComplete(_) => sets.push(open.take().unwrap_or_default()),
                BackendMessage::EmptyQueryResponse => {}
                BackendMessage::ReadyForQuery => return Ok(sets),
                BackendMessage::ErrorResponse(error) => return Err(self.finish_failed(error).await),
                other => return Err(unexpected(&other, "waiting for rows")),
            }
        }
    }

    /// Sends `sql` without reading any answer.
    pub async fn send_query(&mut self, sql: &str) -> Result<(), ClientError> {
        frontend::put::query(self.writer.buffer(), sql);
        Ok(self.writer.flush().await?)
    }

    /// The next message about a command; notices and parameter changes are handled here. Cancellation safe.
    pub async fn receive(&mut self) -> Result<BackendMessage, ClientError> {
        loop {
            let raw = self.reader.read().await?.ok_or(ClientError::Closed)?;
            match BackendMessage::decode(raw)? {
                BackendMessage::ParameterStatus { name, value } => {
                    self.parameters.insert(name, value);
                }
                BackendMessage::NoticeResponse(notice) => tracing::info!("notice from the server: {notice}"),
                BackendMessage::NotificationResponse => {}
                message => return Ok(message),
            }
        }
    }

    /// After an error inside a simple query: reads until the connection is usable again. Errors while doing so are
    /// ignored: the original error matters.
    pub async fn finish_failed(&mut self, error: ErrorFields) -> ClientError {
        if matches!(error.severity.as_str(), "FATAL" | "PANIC") {
            return ClientError::Server(error);
        }
        loop {
            match self.receive().await {
                Ok(BackendMessage::ReadyForQuery) | Err(_) => return ClientError::Server(error),
                Ok(_) => {}
            }
        }
    }

    /// Encoders append messages to it, and it sends them.
    pub fn writer(&mut self) -> &mut ClientWriter {
        &mut self.writer
    }

    /// Splits the client into its two directions, to use both at once.
    pub fn into_parts(self) -> (ClientReader, ClientWriter) {
        (self.reader, self.writer)
    }

    /// Terminates the session.
    pub async fn close(mut self) {
        frontend::put::terminate(self.writer.buffer());
        // The server may be gone already; nothing is lost.
        let _ = self.writer.shutdown().await;
    }
}

/// The error for a message that is not allowed while `during`; an error from the server is passed through.
pub(crate) fn unexpected(message: &BackendMessage, during: &'static str) -> ClientError {
    match message {
        BackendMessage::ErrorResponse(error) => ClientError::Server(error.clone()),
        other => ClientError::Protocol(ProtocolError::Unexpected { tag: other.tag(), during }),
    }
}
