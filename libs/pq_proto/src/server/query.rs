//! Commands, by the simple or the extended protocol.

use bytes::BytesMut;

use super::command::Query;
use super::{Connection, ConnectionError};
use crate::backend::{ErrorFields, put};
use crate::error::ProtocolError;
use crate::frontend::{FrontendMessage, Target};
use crate::sqlstate::SqlState;

impl Connection {
    /// The next command; `None` if the client ends the session.
    pub async fn next_query(&mut self) -> Result<Option<Query>, ConnectionError> {
        loop {
            let Some(message) = self.next_message().await? else { return Ok(None) };
            if let Some(query) = self.take(message).await? {
                return Ok(Some(query));
            }
        }
    }

    async fn next_message(&mut self) -> Result<Option<FrontendMessage>, ConnectionError> {
        let read = env::clock::timeout(self.options.idle_timeout, self.reader.read()).await;
        let Some(raw) = read.map_err(|_| ConnectionError::Timeout("waiting for a command"))?? else {
            return Ok(None);
        };
        match FrontendMessage::decode(raw) {
            Ok(FrontendMessage::Terminate) => Ok(None),
            Ok(message) => Ok(Some(message)),
            Err(error) => {
                let told = ErrorFields::new(SqlState::PROTOCOL_VIOLATION, error.to_string());
                put::error(self.writer.buffer(), &told);
                self.writer.flush().await?;
                Err(error.into())
            }
        }
    }

    async fn take(&mut self, message: FrontendMessage) -> Result<Option<Query>, ConnectionError> {
        use FrontendMessage::*;
        let buf = self.writer.buffer();
        match message {
            Sync => {
                self.extended.skipping = false;
                self.extended.prepared.sync();
                put::ready_for_query(buf);
                self.writer.flush().await?;
            }
            _ if self.extended.skipping => {}
            Query(text) if text.trim_matches([' ', ';', '\n', '\r', '\t']).is_empty() => {
                put::empty_query(buf);
                put::ready_for_query(buf);
                self.writer.flush().await?;
            }
            Query(text) => {
                self.extended.prepared.simple();
                return Ok(Some(super::command::Query { text, extended: false }));
            }
            Parse { name, text } => {
                let done = self.extended.prepared.parse(name, text);
                self.answer(done, put::parse_complete);
            }
            Bind { portal, statement } => {
                let done = self.extended.prepared.bind(portal, &statement);
                self.answer(done, put::bind_complete);
            }
            Describe(target, name) => self.describe(target, &name),
            Execute { portal } => match self.extended.prepared.text(Target::Portal, &portal).map(str::to_owned) {
                Ok(text) => return Ok(Some(super::command::Query { text, extended: true })),
                Err(error) => self.answer(Err(error), |_| ()),
            },
            Close(target, name) => {
                self.extended.prepared.close(target, &name);
                put::close_complete(buf);
            }
            Flush => self.writer.flush().await?,
            // The rest of a COPY that failed here while the client was still sending.
            CopyData(_) | CopyDone | CopyFail(_) => {}
            Password(_) | Terminate => {
                let error = ProtocolError::Unexpected { tag: message.tag(), during: "waiting for a command" };
                return Err(error.into());
            }
        }
        Ok(None)
    }

    /// Appends `answer`, or an error, after which everything is ignored until the client syncs.
    fn answer(&mut self, done: Result<(), ErrorFields>, answer: impl FnOnce(&mut BytesMut)) {
        let buf = self.writer.buffer();
        match done {
            Ok(()) => answer(buf),
            Err(error) => {
                put::error(buf, &error);
                self.extended.skipping = true;
            }
        }
    }

    fn describe(&mut self, target: Target, name: &str) {
        let columns = match self.extended.prepared.text(target, name) {
            Ok(text) => (self.options.describe)(text),
            Err(error) => return self.answer(Err(error), |_| ()),
        };
        let buf = self.writer.buffer();
        if target == Target::Statement {
            put::no_parameters(buf);
        }
        match columns {
            Some(columns) => put::row_description(buf, columns),
            None => put::no_data(buf),
        }
    }

    /// Ends a successful command; `tag` says what was done.
    pub async fn complete(&mut self, query: &Query, tag: &str) -> Result<(), ConnectionError> {
        put::command_complete(self.writer.buffer(), tag);
        self.end(query).await
    }

    /// Ends a failed command; the connection remains usable.
    pub async fn fail(&mut self, query: &Query, error: &ErrorFields) -> Result<(), ConnectionError> {
        put::error(self.writer.buffer(), error);
        self.extended.skipping = query.extended;
        self.end(query).await
    }

    async fn end(&mut self, query: &Query) -> Result<(), ConnectionError> {
        if query.extended {
            return Ok(());
        }
        put::ready_for_query(self.writer.buffer());
        Ok(self.writer.flush().await?)
    }

    /// Reports an error after which the connection is closed.
    pub async fn fail_and_close(mut self, error: &ErrorFields) {
        put::error(self.writer.buffer(), error);
        self.close().await;
    }
}
