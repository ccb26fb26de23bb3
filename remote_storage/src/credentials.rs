//! S3 credentials in a separate file, which may be replaced while the process runs.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use camino::Utf8PathBuf;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Error};
use parking_lot::Mutex;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

/// Identifies a version of the file: modification time, size, inode.
type Version = (SystemTime, u64, u64);

/// Provides the file's current credentials: checks the file before each request, and rereads it if it has changed.
pub(super) struct CredentialsFile {
    path: Utf8PathBuf,
    read: Mutex<Option<(Version, Arc<AwsCredential>)>>,
}

impl CredentialsFile {
    pub(super) fn new(path: Utf8PathBuf) -> Self {
        Self { path, read: Mutex::new(None) }
    }

    fn current(&self) -> Result<Arc<AwsCredential>, String> {
        let meta = std::fs::metadata(&self.path).map_err(|error| error.to_string())?;
        let version = (meta.modified().map_err(|error| error.to_string())?, meta.len(), meta.ino());
        let mut read = self.read.lock();
        if let Some((known, credential)) = read.as_ref().filter(|(known, _)| *known == version) {
            let _ = known;
            return Ok(Arc::clone(credential));
        }
        let text = std::fs::read_to_string(&self.path).map_err(|error| error.to_string())?;
        let credential = Arc::new(parse(&text)?);
        if read.is_some() {
            tracing::info!("{}: new credentials for the bucket were read", self.path);
        }
        *read = Some((version, Arc::clone(&credential)));
        Ok(credential)
    }
}

/// The error never includes the text.
fn parse(text: &str) -> Result<AwsCredential, String> {
    let wrong = |_| "expected access_key_id, secret_access_key and perhaps session_token as TOML strings".to_owned();
    let file: File = toml::from_str(text).map_err(wrong)?;
    Ok(AwsCredential { key_id: file.access_key_id, secret_key: file.secret_access_key, token: file.session_token })
}

#[async_trait]
impl CredentialProvider for CredentialsFile {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        self.current().map_err(|reason| Error::Unauthenticated { path: self.path.to_string(), source: reason.into() })
    }
}

impl fmt::Debug for CredentialsFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CredentialsFile").field(&self.path).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_file_is_read_again_and_a_bad_one_is_not_repeated() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("credentials.toml");
        let file = CredentialsFile::new(path.clone());
        assert!(file.current().is_err(), "it is not there");
        std::fs::write(&path, "access_key_id = \"a\"\nsecret_access_key = \"b\"\n").unwrap();
        let first = file.current().unwrap();
        assert_eq!((first.key_id.as_str(), first.token.is_none()), ("a", true));
        let aside = dir.path().join("new");
        std::fs::write(&aside, "access_key_id = \"c\"\nsecret_access_key = \"d\"\nsession_token = \"e\"\n").unwrap();
        std::fs::rename(&aside, &path).unwrap();
        assert_eq!(file.current().unwrap().token.as_deref(), Some("e"));
        std::fs::write(&path, "secret_access_key = \"hidden\"\n").unwrap();
        assert!(!file.current().unwrap_err().contains("hidden"));
        assert!(!format!("{file:?}").contains("\"d\""));
    }
}
