//! Grouping of incoming requests: consecutive requests for pages form one batch.
//!
//! While a batch is being answered, further requests wait in the socket; those that have arrived by then form the
//! next batch. So no request ever waits for others to arrive, and a client cannot make the server hold more than one
//! batch.

use pageserver_api::pagestream::{ProtocolVersion, Query, Request};
use pq_proto::error::ProtocolError;
use pq_proto::framing::RawMessage;
use pq_proto::frontend::FrontendMessage;
use pq_proto::server::ServerReader;

use super::errors::CommandError;

/// Requests to answer together.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Work {
    /// Requests for pages; at least one.
    Pages(Vec<Request>),
    /// Any other request.
    Other(Request),
    /// The client has left.
    End,
}

/// Forms batches.
pub(super) struct Batches {
    version: ProtocolVersion,
    max_size: usize,
    /// The request that did not fit into the last batch.
    next: Option<Result<Incoming, CommandError>>,
}

enum Incoming {
    Request(Request),
    End,
}

impl Batches {
    pub(super) fn new(version: ProtocolVersion, max_size: usize) -> Self {
        Self { version, max_size: max_size.max(1), next: None }
    }

    /// Waits for the next request, and takes with it those that have already arrived. Cancellation safe.
    ///
    /// # Errors
    /// The client sent something that is not a request. Earlier requests have been answered.
    pub(super) async fn next(&mut self, reader: &mut ServerReader) -> Result<Work, CommandError> {
        let first = match self.next.take() {
            Some(waiting) => waiting?,
            None => match reader.read().await? {
                Some(raw) => self.decode(raw)?,
                None => Incoming::End,
            },
        };
        let first = match first {
            Incoming::Request(request) => request,
            Incoming::End => return Ok(Work::End),
        };
        if !is_page(&first) {
            return Ok(Work::Other(first));
        }
        let mut pages = vec![first];
        while pages.len() < self.max_size {
            match self.ready(reader).await {
                None => break,
                Some(Ok(Incoming::Request(request))) if is_page(&request) => pages.push(request),
                other => {
                    self.next = other;
                    break;
                }
            }
        }
        Ok(Work::Pages(pages))
    }

    /// The next request, if it has already arrived. Does not wait, so cancellation cannot lose what was collected.
    async fn ready(&self, reader: &mut ServerReader) -> Option<Result<Incoming, CommandError>> {
        match reader.read_ready().await {
            Ok(raw) => raw.map(|raw| self.decode(raw)),
            Err(error) => Some(Err(error.into())),
        }
    }

    fn decode(&self, raw: RawMessage) -> Result<Incoming, CommandError> {
        match FrontendMessage::decode(raw)? {
            FrontendMessage::CopyData(bytes) => {
                Request::decode(self.version, bytes).map(Incoming::Request).map_err(CommandError::protocol)
            }
            FrontendMessage::Terminate => Ok(Incoming::End),
            other => Err(ProtocolError::Unexpected { tag: other.tag(), during: "streaming pages" }.into()),
        }
    }
}

fn is_page(request: &Request) -> bool {
    matches!(request.query, Query::GetPage(..))
}
