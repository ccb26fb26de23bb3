//! The server's certificate for both ports, reloaded on request.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

/// Why TLS cannot be offered.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is missing, unreadable, or not PEM with the expected contents.
    #[error("cannot read {what} from {path}: {reason}")]
    File {
        /// Certificate or key.
        what: &'static str,
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// Certificate and key do not match, or cannot be used.
    #[error("cannot use the certificate in {cert} with the key in {key}: {source}")]
    Unusable {
        /// The certificate's file.
        cert: Utf8PathBuf,
        /// The key's file.
        key: Utf8PathBuf,
        /// The reason.
        source: rustls::Error,
    },
}

/// A certificate chain and its key.
#[derive(Debug)]
pub struct Certificate {
    cert: Utf8PathBuf,
    key: Utf8PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
}

impl Certificate {
    /// Reads both PEM files.
    ///
    /// # Errors
    /// If one cannot be read, or they do not match.
    pub fn load(cert: Utf8PathBuf, key: Utf8PathBuf) -> Result<Self, TlsError> {
        let current = RwLock::new(read(&cert, &key)?);
        Ok(Self { cert, key, current })
    }

    /// Reloads both files, for later connections. On error the present certificate stays in use.
    ///
    /// # Errors
    /// Same as [`Certificate::load`].
    pub fn reload(&self) -> Result<(), TlsError> {
        *self.current.write() = read(&self.cert, &self.key)?;
        Ok(())
    }

    /// TLS configuration (1.2 or 1.3) of a port with this certificate; `alpn` lists the protocols it may negotiate.
    ///
    /// # Errors
    /// If the library refuses its own defaults.
    pub fn server_config(self: &Arc<Self>, alpn: &[&[u8]]) -> Result<Arc<ServerConfig>, TlsError> {
        let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions();
        let builder = builder.map_err(|source| self.unusable(source))?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.alpn_protocols = alpn.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    fn unusable(&self, source: rustls::Error) -> TlsError {
        TlsError::Unusable { cert: self.cert.clone(), key: self.key.clone(), source }
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.current.read()))
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn read(cert: &Utf8Path, key: &Utf8Path) -> Result<Arc<CertifiedKey>, TlsError> {
    let error = |what, path: &Utf8Path, reason: String| TlsError::File { what, path: path.to_owned(), reason };
    let bad_cert = |reason: String| error("a certificate", cert, reason);
    let pem = std::fs::read(cert).map_err(|source| bad_cert(source.to_string()))?;
    let chain = CertificateDer::pem_slice_iter(&pem).collect::<Result<Vec<_>, _>>();
    let chain = chain.map_err(|source| bad_cert(source.to_string()))?;
    if chain.is_empty() {
        return Err(bad_cert("no section CERTIFICATE".to_owned()));
    }
    let pem = std::fs::read(key).map_err(|source| error("a private key", key, source.to_string()))?;
    let private = PrivateKeyDer::from_pem_slice(&pem).map_err(|source| error("a private key", key, source.to_string()));
    CertifiedKey::from_der(chain, private?, &provider()).map(Arc::new).map_err(|source| TlsError::Unusable {
        cert: cert.to_owned(),
        key: key.to_owned(),
        source,
    })
}
