//! TLS without server authentication: libpq's `prefer` and `require` protect from eavesdroppers, not from impostors.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::error::ClientError;
use crate::stream::BoxStream;

/// Protocol name that servers require if TLS starts with the first byte.
const ALPN: &[u8] = b"postgresql";

/// Accepts any certificate, but the server must have its private key.
#[derive(Debug)]
struct AnyServer(CryptoProvider);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Starts TLS on `stream`; `direct` means without a preceding request.
pub(super) async fn start(stream: TcpStream, name: &str, direct: bool) -> Result<BoxStream, ClientError> {
    let failed = |error: &dyn std::fmt::Display| ClientError::Tls(error.to_string());
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = versions.with_safe_default_protocol_versions().map_err(|error| failed(&error))?;
    let verifier = Arc::new(AnyServer(ring::default_provider()));
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    if direct {
        config.alpn_protocols = vec![ALPN.to_vec()];
    }
    let name = ServerName::try_from(name.to_owned()).map_err(|error| failed(&error))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| failed(&error))?;
    Ok(Box::new(stream))
}
