//! TLS on the server's side, with this crate's own client and with bytes that no correct client sends.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use pq_proto::client::{Client, Config};
use pq_proto::frontend::StartupPacket;
use pq_proto::server::{Connection, ConnectionError, ServerOptions, Trust};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

/// And the certificate.
fn options() -> (ServerOptions, String) {
    let certified = rcgen::generate_simple_self_signed(vec!["pageserver".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(certified.signing_key.serialize_der().into());
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = builder.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let mut config = builder.with_single_cert(vec![certified.cert.der().clone()], key).unwrap();
    config.alpn_protocols = vec![b"postgresql".to_vec()];
    let options = ServerOptions {
        tls: Some(TlsAcceptor::from(Arc::new(config))),
        handshake_timeout: Duration::from_secs(5),
        idle_timeout: Duration::from_secs(5),
        describe: |_| None,
    };
    (options, certified.cert.pem())
}

/// Serves one connection; returns its port, and how it ended.
async fn serve() -> (u16, JoinHandle<Result<(), ConnectionError>>) {
    serve_with(options().0).await
}

async fn serve_with(options: ServerOptions) -> (u16, JoinHandle<Result<(), ConnectionError>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let served = tokio::spawn(async move {
        let (stream, _) = listener.accept().await.unwrap();
        let (mut connection, ()) = Connection::accept(Box::new(stream), options, &Trust).await?;
        while let Some(query) = connection.next_query().await? {
            connection.complete(&query, "SELECT 1").await?;
        }
        Ok(())
    });
    (port, served)
}

#[tokio::test]
async fn tls_asked_for_and_tls_at_once() {
    for more in ["sslmode=require", "sslmode=prefer", "sslmode=require sslnegotiation=direct"] {
        let (port, served) = serve().await;
        let config: Config = format!("host=127.0.0.1 port={port} user=u {more}").parse().unwrap();
        let mut client = Client::connect(&config, &[]).await.unwrap_or_else(|error| panic!("{more}: {error}"));
        assert_eq!(client.simple_query("set x").await.unwrap().len(), 1);
        client.close().await;
        served.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn a_server_is_who_its_certificate_says() {
    let dir = camino_tempfile::tempdir().unwrap();
    let (trusted, stranger) = (dir.path().join("trusted.crt"), dir.path().join("stranger.crt"));
    std::fs::write(&stranger, options().1).unwrap();
    for (host, mode, root, wanted) in [
        ("host=pageserver hostaddr=127.0.0.1", "verify-full", &trusted, Ok(())),
        ("host=127.0.0.1", "verify-full", &trusted, Err("not valid for name")),
        ("host=127.0.0.1", "verify-ca", &trusted, Ok(())),
        ("host=127.0.0.1", "require", &trusted, Ok(())),
        ("host=pageserver hostaddr=127.0.0.1", "verify-full", &stranger, Err("invalid peer certificate")),
        ("host=127.0.0.1", "verify-ca", &stranger, Err("invalid peer certificate")),
        ("host=127.0.0.1", "require", &stranger, Err("invalid peer certificate")),
        ("host=127.0.0.1", "verify-ca", &dir.path().join("nothing.crt"), Err("nothing.crt")),
    ] {
        let (options, certificate) = options();
        std::fs::write(&trusted, certificate).unwrap();
        let (port, served) = serve_with(options).await;
        let text = format!("{host} port={port} user=u sslmode={mode} sslrootcert={root}");
        let config: Config = text.parse().unwrap();
        match (Client::connect(&config, &[]).await, wanted) {
            (Ok(client), Ok(())) => client.close().await,
            (Err(error), Err(wanted)) => assert!(format!("{error:?}").contains(wanted), "{text}: {error:?}"),
            (Ok(_), Err(_)) => panic!("{text}: it was let through"),
            (Err(error), Ok(())) => panic!("{text}: {error}"),
        }
        // Whoever was not trusted sees a connection that ends.
        assert_eq!(served.await.unwrap().is_ok(), wanted.is_ok(), "{text}");
    }
}

#[tokio::test]
async fn without_tls_nobody_is_let_in() {
    let (port, served) = serve().await;
    let config: Config = format!("host=127.0.0.1 port={port} user=u sslmode=disable").parse().unwrap();
    let refused = Client::connect(&config, &[]).await.err().unwrap();
    assert!(refused.to_string().contains("must connect with TLS"), "{refused}");
    assert!(matches!(served.await.unwrap(), Err(ConnectionError::Refused(_))));
}

/// A man in the middle could insert a startup packet before the encrypted one.
#[tokio::test]
async fn nothing_may_come_between_request_and_handshake() {
    let (port, served) = serve().await;
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let mut first = BytesMut::new();
    StartupPacket::Ssl.encode(&mut first);
    StartupPacket::Startup(Default::default()).encode(&mut first);
    stream.write_all(&first).await.unwrap();
    assert!(matches!(served.await.unwrap(), Err(ConnectionError::Protocol(_))));
    let mut rest = vec![];
    // The server may close the connection before it has read all of it.
    let _ = stream.read_to_end(&mut rest).await;
    assert!(rest.len() <= 1, "{rest:?}");
}
