//! A stream of requests. Requests may be pipelined: many can be in flight, and answers arrive in request order.

use bytes::Bytes;
use pageserver_api::pagestream::{Answer, DecodeError, ProtocolVersion, Request, Response};
use pq_proto::backend::{BackendMessage, ErrorFields};
use pq_proto::client::{Client, ClientReader, ClientWriter};
use pq_proto::error::ProtocolError;
use pq_proto::frontend::put;

use super::{ClientError, unexpected};

/// Both directions of a stream.
pub struct PageStream {
    sender: PageSender,
    receiver: PageReceiver,
}

/// Sends requests.
pub struct PageSender {
    version: ProtocolVersion,
    writer: ClientWriter,
}

/// Receives answers.
pub struct PageReceiver {
    version: ProtocolVersion,
    reader: ClientReader,
}

impl PageStream {
    pub(super) fn new(version: ProtocolVersion, client: Client) -> Self {
        let (reader, writer) = client.into_parts();
        Self { sender: PageSender { version, writer }, receiver: PageReceiver { version, reader } }
    }

    /// Sends a request and waits for its answer. Not cancellation safe.
    pub async fn request(&mut self, request: &Request) -> Result<Answer<Bytes>, ClientError> {
        self.sender.queue(request);
        self.sender.flush().await?;
        self.receiver.receive_for(request).await
    }

    /// Splits the stream into its two directions for concurrent use.
    pub fn split(self) -> (PageSender, PageReceiver) {
        (self.sender, self.receiver)
    }
}

impl PageSender {
    /// Adds a request to the buffer.
    pub fn queue(&mut self, request: &Request) {
        let version = self.version;
        put::copy_data(self.writer.buffer(), |buf| request.encode(version, buf));
    }

    /// Sends all queued requests. Cancellation safe.
    pub async fn flush(&mut self) -> Result<(), ClientError> {
        Ok(self.writer.flush().await?)
    }

    /// Terminates the connection.
    pub async fn close(mut self) {
        put::terminate(self.writer.buffer());
        // An error means that the server is gone already, so nothing is lost.
        let _ = self.writer.shutdown().await;
    }
}

impl PageReceiver {
    /// Receives the next answer. Cancellation safe.
    pub async fn receive(&mut self) -> Result<Response, ClientError> {
        loop {
            let raw = self.reader.read().await?.ok_or(ClientError::Closed)?;
            match BackendMessage::decode(raw)? {
                BackendMessage::CopyData(bytes) => {
                    return Response::decode(self.version, bytes).map_err(|error| malformed(&error));
                }
                BackendMessage::ErrorResponse(error) => return Err(ClientError::Server(error)),
                BackendMessage::NoticeResponse(_) | BackendMessage::ParameterStatus { .. } => {}
                other => return Err(unexpected(&other)),
            }
        }
    }

    /// Receives the next answer, which must be the one to `request`.
    pub async fn receive_for(&mut self, request: &Request) -> Result<Answer<Bytes>, ClientError> {
        let response = self.receive().await?;
        let header = response.header.is_none_or(|header| header == request.header);
        let query = response.query.is_none_or(|query| query == request.query);
        if header && query {
            return Ok(response.answer);
        }
        Err(ClientError::Protocol(ProtocolError::Malformed("pagestream: the answer is to another request")))
    }
}

/// The server sent an invalid response: reported with the reason, in the form of a server error.
fn malformed(error: &DecodeError) -> ClientError {
    ClientError::Server(ErrorFields::new(pq_proto::sqlstate::SqlState::PROTOCOL_VIOLATION, error.to_string()))
}
