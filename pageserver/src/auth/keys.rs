//! The public keys for token signatures: a PEM file or a directory of such files, reloaded on request.

use std::sync::Arc;

use camino::{Utf8Path, Utf8PathBuf};
use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::pki_types::pem::PemObject;
use tokio::sync::watch;

/// The DER prefix of the 32 bytes of an Ed25519 key (RFC 8410): sequence, algorithm 1.3.101.112, bit string.
const ED25519_PREFIX: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];

/// Why keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// An I/O error.
    #[error("cannot read the public keys for authentication at {path}: {source}")]
    Read {
        /// File or directory.
        path: Utf8PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file contains no usable key.
    #[error("{path} is not a PEM file with Ed25519 public keys: {reason}")]
    NotAKey {
        /// The file.
        path: Utf8PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The directory has no PEM file.
    #[error("no file in {path} ends in .pem: without a key nobody could be authenticated")]
    NoKeys {
        /// The directory.
        path: Utf8PathBuf,
    },
}

/// An Ed25519 public key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PublicKey([u8; 32]);

impl PublicKey {
    pub(super) fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub(super) fn has_signed(&self, message: &[u8], signature: &[u8]) -> bool {
        UnparsedPublicKey::new(&ED25519, self.0).verify(message, signature).is_ok()
    }
}

/// The keys in use, which [`KeyRing::reload`] replaces all at once.
#[derive(Debug)]
pub struct KeyRing {
    path: Utf8PathBuf,
    keys: watch::Sender<Arc<[PublicKey]>>,
}

impl KeyRing {
    /// Loads the keys at `path`: those of a PEM file, or of all files in a directory whose names end in `.pem`.
    ///
    /// # Errors
    /// If a file cannot be read or contains anything but Ed25519 public keys, or if there is no key at all.
    pub fn load(path: Utf8PathBuf) -> Result<Self, KeyError> {
        let keys = watch::Sender::new(read_all(&path)?);
        Ok(Self { path, keys })
    }

    /// Reloads the keys and returns their number. On error the present keys stay in use. Grants based on a key that
    /// was removed end.
    ///
    /// # Errors
    /// Same as [`KeyRing::load`].
    pub fn reload(&self) -> Result<usize, KeyError> {
        let keys = read_all(&self.path)?;
        let count = keys.len();
        self.keys.send_replace(keys);
        Ok(count)
    }

    pub(super) fn current(&self) -> Arc<[PublicKey]> {
        Arc::clone(&self.keys.borrow())
    }

    /// The keys, with notification of changes.
    pub(super) fn watch(&self) -> watch::Receiver<Arc<[PublicKey]>> {
        self.keys.subscribe()
    }
}

fn read_all(path: &Utf8Path) -> Result<Arc<[PublicKey]>, KeyError> {
    let error = |source| KeyError::Read { path: path.to_owned(), source };
    if !path.is_dir() {
        return Ok(read_file(path)?.into());
    }
    let entries = path.read_dir_utf8().map_err(error)?;
    let files = entries.map(|entry| Ok(entry?.into_path())).collect::<Result<Vec<_>, _>>().map_err(error)?;
    let mut files: Vec<_> = files.into_iter().filter(|file| file.extension() == Some("pem")).collect();
    files.sort();
    let keys = files.iter().map(|file| read_file(file)).collect::<Result<Vec<_>, _>>()?.concat();
    if keys.is_empty() { Err(KeyError::NoKeys { path: path.to_owned() }) } else { Ok(keys.into()) }
}

fn read_file(path: &Utf8Path) -> Result<Vec<PublicKey>, KeyError> {
    let not_a_key = |reason: &str| KeyError::NotAKey { path: path.to_owned(), reason: reason.to_owned() };
    let pem = std::fs::read(path).map_err(|source| KeyError::Read { path: path.to_owned(), source })?;
    let mut keys = Vec::new();
    for der in SubjectPublicKeyInfoDer::pem_slice_iter(&pem) {
        let der = der.map_err(|error| not_a_key(&error.to_string()))?;
        let raw = der.strip_prefix(&ED25519_PREFIX).and_then(|raw| <[u8; 32]>::try_from(raw).ok());
        keys.push(PublicKey::new(raw.ok_or_else(|| not_a_key("a key of another algorithm"))?));
    }
    if keys.is_empty() { Err(not_a_key("no section PUBLIC KEY")) } else { Ok(keys) }
}
