//! Handshake and commands over a stream in memory.

use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::{Authenticator, Connection, ConnectionError, ServerOptions, Trust};
use crate::backend::{Authentication, BackendMessage, ErrorFields};
use crate::client::Client;
use crate::framing::put_message;
use crate::frontend::{StartupPacket, StartupParameters, Target, put};
use crate::sqlstate::SqlState;

fn options() -> ServerOptions {
    ServerOptions {
        tls: None,
        handshake_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(5),
        describe: |sql| sql.starts_with("lease").then_some(["valid_until"].as_slice()),
    }
}

struct Token(&'static str);

impl Authenticator for Token {
    type Identity = &'static str;
    fn wants_password(&self) -> bool {
        true
    }
    fn authenticate(&self, password: Option<&str>) -> Result<&'static str, ErrorFields> {
        let refused = || ErrorFields::new(SqlState::INTERNAL_ERROR, "JWT authentication error");
        if password == Some(self.0) { Ok("in") } else { Err(refused()) }
    }
}

fn startup() -> BytesMut {
    let mut buf = BytesMut::new();
    let parameters = vec![("user".to_owned(), "u".to_owned())];
    StartupPacket::Startup(StartupParameters { minor: 0, parameters }).encode(&mut buf);
    buf
}

async fn accepted(first: &[u8]) -> (Result<(Connection, ()), ConnectionError>, DuplexStream) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    theirs.write_all(first).await.unwrap();
    (Connection::accept(Box::new(ours), options(), &Trust).await, theirs)
}

#[tokio::test]
async fn trust_handshake_byte_by_byte() {
    let (connection, mut client) = accepted(&startup()).await;
    assert_eq!(connection.unwrap().0.startup().get("user"), Some("u"));
    let expected = [
        b"R\0\0\0\x08\0\0\0\0".as_slice(),
        b"S\0\0\0\x19client_encoding\0UTF8\0",
        b"S\0\0\0\x19integer_datetimes\0on\0",
        b"S\0\0\0\x18server_version\x0014.1\0",
        b"Z\0\0\0\x05I",
    ]
    .concat();
    let mut got = vec![0; expected.len()];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(got, expected);
}

#[tokio::test]
async fn encryption_is_declined_without_tls() {
    let mut first = BytesMut::new();
    StartupPacket::GssEnc.encode(&mut first);
    StartupPacket::Ssl.encode(&mut first);
    first.extend_from_slice(&startup());
    let (connection, mut client) = accepted(&first).await;
    connection.unwrap();
    let mut got = [0; 3];
    client.read_exact(&mut got).await.unwrap();
    assert_eq!(&got, b"NNR");
}

#[tokio::test]
async fn bad_starts_are_refused() {
    let mut endless = BytesMut::new();
    (0..5).for_each(|_| StartupPacket::Ssl.encode(&mut endless));
    let mut cancel = BytesMut::new();
    StartupPacket::Cancel.encode(&mut cancel);
    let bad = [&[0, 0, 0, 4], &[0, 1, 0, 0], b"GET / HTTP/1.1\r\n".as_slice(), &endless, &cancel, &[0x16, 3, 1, 2]];
    for first in bad {
        let (connection, _client) = accepted(first).await;
        assert!(matches!(connection, Err(ConnectionError::Protocol(_))), "{first:?}");
    }
}

#[tokio::test]
async fn a_silent_client_is_dropped() {
    let short = Duration::from_millis(20);
    let impatient = ServerOptions { handshake_timeout: short, idle_timeout: short, ..options() };
    let (ours, _theirs) = tokio::io::duplex(64);
    let connection = Connection::accept(Box::new(ours), impatient.clone(), &Trust).await;
    assert!(matches!(connection, Err(ConnectionError::Timeout(_))));
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    theirs.write_all(&startup()).await.unwrap();
    let patient_at_first = ServerOptions { idle_timeout: short, ..options() };
    let (mut connection, ()) = Connection::accept(Box::new(ours), patient_at_first, &Trust).await.unwrap();
    let error = connection.next_query().await.unwrap_err();
    assert!(matches!(error, ConnectionError::Timeout(_)));
}

async fn log_in(password: &[u8]) -> (Result<&'static str, String>, Vec<BackendMessage>) {
    let (ours, mut theirs) = tokio::io::duplex(1 << 16);
    let mut first = startup();
    put::password(&mut first, password);
    theirs.write_all(&first).await.unwrap();
    let result = Connection::accept(Box::new(ours), options(), &Token("the token")).await;
    let identity = result.map(|(_, identity)| identity).map_err(|error| error.to_string());
    let mut client = Client::over(Box::new(theirs));
    let mut messages = vec![];
    while let Ok(message) = client.receive().await {
        messages.push(message);
    }
    (identity, messages)
}

#[tokio::test]
async fn passwords_are_asked_and_checked() {
    let cleartext = BackendMessage::Authentication(Authentication::Cleartext);
    let (identity, messages) = log_in(b"the token").await;
    assert_eq!(identity.unwrap(), "in");
    let ok = BackendMessage::Authentication(Authentication::Ok);
    assert_eq!(messages, [cleartext.clone(), ok, BackendMessage::ReadyForQuery]);
    let (refused, messages) = log_in(b"hunter2").await;
    assert!(!refused.unwrap_err().contains("hunter2"));
    let error = ErrorFields::new(SqlState::INTERNAL_ERROR, "JWT authentication error");
    assert_eq!(messages, [cleartext, BackendMessage::ErrorResponse(error)]);
}

async fn session() -> (Connection, Client) {
    let (connection, theirs) = accepted(&startup()).await;
    let mut client = Client::over(Box::new(theirs));
    while client.receive().await.unwrap() != BackendMessage::ReadyForQuery {}
    (connection.unwrap().0, client)
}

#[tokio::test]
async fn extended_protocol_skips_to_sync_after_an_error() {
    let (mut connection, mut client) = session().await;
    let buf = client.writer().buffer();
    for _ in 0..2 {
        put::parse(buf, "lease lsn");
        put::describe(buf, Target::Statement);
        put::bind(buf);
        put::execute(buf);
    }
    put::sync(buf);
    put::query(buf, "set x");
    client.writer().flush().await.unwrap();
    let query = connection.next_query().await.unwrap().unwrap();
    assert!(query.extended && query.text == "lease lsn");
    let error = ErrorFields::new(SqlState::INTERNAL_ERROR, "not found");
    connection.fail(&query, &error).await.unwrap();
    let query = connection.next_query().await.unwrap().unwrap();
    assert!(!query.extended && query.text == "set x");
    connection.complete(&query, "SELECT 1").await.unwrap();
    connection.close().await;
    let mut messages = vec![];
    while let Ok(message) = client.receive().await {
        messages.push(message);
    }
    use BackendMessage::*;
    let expected = [
        ParseComplete,
        ParameterDescription,
        RowDescription(vec!["valid_until".into()]),
        BindComplete,
        ErrorResponse(error),
        ReadyForQuery,
        CommandComplete("SELECT 1".into()),
        ReadyForQuery,
    ];
    assert_eq!(messages, expected);
}

#[tokio::test]
async fn named_statements_are_prepared_once_and_run_often() {
    let (mut connection, mut client) = session().await;
    let buf = client.writer().buffer();
    let mut message = |tag, body: &[u8]| put_message(buf, tag, |buf| buf.extend_from_slice(body));
    message(b'P', b"s1\0lease lsn\0\0\0");
    message(b'P', b"s2\0set x\0\0\0");
    message(b'D', b"Ss1\0");
    message(b'S', b"");
    for _ in 0..2 {
        message(b'B', b"p\0s1\0\0\0\0\0\0\0");
        message(b'E', b"p\0\0\0\0\0");
        message(b'S', b"");
    }
    message(b'C', b"Ss1\0");
    message(b'B', b"\0s1\0\0\0\0\0\0\0");
    message(b'E', b"\0\0\0\0\0");
    message(b'S', b"");
    message(b'X', b"");
    client.writer().flush().await.unwrap();
    for _ in 0..2 {
        let query = connection.next_query().await.unwrap().unwrap();
        assert_eq!((query.text.as_str(), query.extended), ("lease lsn", true));
        connection.complete(&query, "SELECT 1").await.unwrap();
    }
    assert_eq!(connection.next_query().await.unwrap(), None);
    connection.close().await;
    let mut tags = String::new();
    while let Ok(message) = client.receive().await {
        tags.push(message.tag());
    }
    assert_eq!(tags, "11tTZ2CZ2CZ3EZ");
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_session() {
    let (mut connection, client) = session().await;
    client.close().await;
    assert_eq!(connection.next_query().await.unwrap(), None);
    let (mut connection, client) = session().await;
    drop(client);
    assert_eq!(connection.next_query().await.unwrap(), None);
}
