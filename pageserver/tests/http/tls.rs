//! TLS: a client that trusts the certificate is served, one that does not use TLS is not, and a new certificate takes
//! effect without a restart.

use std::sync::Arc;

use camino::Utf8Path;
use pageserver::tls::{Certificate, TlsError};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::{Answer, exchange, request};
use crate::server::Server;

/// Writes a new self-signed certificate for "localhost" and its key; returns the certificate.
fn issue(dir: &Utf8Path) -> CertificateDer<'static> {
    let issued = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(dir.join("server.crt"), issued.cert.pem()).unwrap();
    std::fs::write(dir.join("server.key"), issued.signing_key.serialize_pem()).unwrap();
    issued.cert.der().clone()
}

async fn get(server: &Server, trusted: &CertificateDer<'static>) -> Result<Answer, std::io::Error> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    let stream = TcpStream::connect(server.client.addr).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    Ok(exchange(stream, &request("GET", "/v1/status", None, "")).await.expect("an answer"))
}

#[tokio::test(flavor = "multi_thread")]
async fn only_tls_is_spoken_with_the_newest_certificate() {
    let files = camino_tempfile::tempdir().unwrap();
    let first = issue(files.path());
    let certificate = Certificate::load(files.path().join("server.crt"), files.path().join("server.key")).unwrap();
    let certificate = Arc::new(certificate);
    let config = certificate.server_config(&[b"http/1.1"]).unwrap();
    let server = Server::start(|_, options| options.tls = Some(config)).await;

    assert_eq!(get(&server, &first).await.unwrap().status, 200);
    let plain = server.client.raw(&request("GET", "/v1/status", None, "")).await;
    assert!(plain.is_none(), "{plain:?}");

    let second = issue(files.path());
    assert!(get(&server, &second).await.is_err(), "not read yet");
    certificate.reload().unwrap();
    assert_eq!(get(&server, &second).await.unwrap().status, 200);
    assert!(get(&server, &first).await.is_err(), "the old one is gone");
    server.stop().await;
}

#[test]
fn files_that_do_not_go_together_are_refused_by_name() {
    let (one, two) = (camino_tempfile::tempdir().unwrap(), camino_tempfile::tempdir().unwrap());
    issue(one.path());
    issue(two.path());
    let load = |cert: &Utf8Path, key: &Utf8Path| Certificate::load(cert.to_owned(), key.to_owned()).unwrap_err();
    let (cert, key) = (one.path().join("server.crt"), one.path().join("server.key"));
    assert!(matches!(load(&cert, &two.path().join("server.key")), TlsError::Unusable { .. }));
    assert!(load(&key, &key).to_string().contains("no section CERTIFICATE"));
    assert!(load(&cert, &cert).to_string().contains("a private key"));
    assert!(load(&one.path().join("absent"), &key).to_string().contains("absent"));
}
