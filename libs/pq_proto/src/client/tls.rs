//! TLS. libpq's `prefer` and `require` protect from eavesdroppers, not from impostors; `verify-ca` and `verify-full`
//! from these, too.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::config::{Naming, Trust};
use super::error::ClientError;
use crate::stream::BoxStream;

/// Protocol name that servers require if TLS starts with the first byte.
const ALPN: &[u8] = b"postgresql";

/// Accepts any certificate, or any that `authority` accepts but for the name that it is for. The server must have the
/// private key.
#[derive(Debug)]
struct AnyName {
    authority: Option<Arc<WebPkiServerVerifier>>,
    crypto: CryptoProvider,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        cert: &CertificateDer<'_>,
        more: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match authority.verify_server_cert(cert, more, name, ocsp, now) {
            // The last thing that is looked at.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, signed, &self.crypto.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, signed, &self.crypto.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.crypto.signature_verification_algorithms.supported_schemes()
    }
}

/// Starts TLS on `stream`; `direct` means without a preceding request.
pub(super) async fn start(
    stream: TcpStream,
    name: &str,
    direct: bool,
    trust: &Trust,
) -> Result<BoxStream, ClientError> {
    let failed = |error: &dyn std::fmt::Display| ClientError::Tls(error.to_string());
    let versions = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let builder = versions.with_safe_default_protocol_versions().map_err(|error| failed(&error))?;
    let verifier = verifier(trust)?;
    let mut config = builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    if direct {
        config.alpn_protocols = vec![ALPN.to_vec()];
    }
    let name = ServerName::try_from(name.to_owned()).map_err(|error| failed(&error))?;
    let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| failed(&error))?;
    Ok(Box::new(stream))
}

fn verifier(trust: &Trust) -> Result<Arc<dyn ServerCertVerifier>, ClientError> {
    let crypto = ring::default_provider();
    let Trust::Authority { file, is_named } = trust else {
        return Ok(Arc::new(AnyName { authority: None, crypto }));
    };
    let failed = |reason: String| ClientError::Tls(format!("certificates to trust, {}: {reason}", file.display()));
    let roots = Arc::new(roots(file).map_err(failed)?);
    let authority = WebPkiServerVerifier::builder_with_provider(roots, Arc::new(crypto.clone())).build();
    let authority = authority.map_err(|error| failed(error.to_string()))?;
    Ok(match is_named {
        Naming::Host => authority,
        Naming::Any => Arc::new(AnyName { authority: Some(authority), crypto }),
    })
}

/// Read for each connection, as they may be replaced while a server runs.
fn roots(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("there are none in it".to_owned()) } else { Ok(roots) }
}
