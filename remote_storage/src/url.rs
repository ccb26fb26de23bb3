//! The setting `remote_storage`: the kind of bucket, and the location in it.

use camino::{Utf8Path, Utf8PathBuf};
use object_store::path::Path;
use url::Url;

/// The location of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteUrl {
    /// There is no bucket.
    None,
    /// A directory.
    Directory(Utf8PathBuf),
    /// A bucket in a cloud, or a prefix of it.
    Bucket {
        /// The protocol that it speaks.
        cloud: Cloud,
        /// Name of the bucket or container.
        bucket: String,
        /// The prefix of all object names; may be empty.
        prefix: Path,
    },
}

/// Kinds of clouds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cloud {
    /// AWS S3, and anything compatible with it.
    S3,
    /// Google Cloud Storage.
    Google,
    /// Azure Blob Storage.
    Azure,
}

impl RemoteUrl {
    /// Parses the setting; the error says what would be valid.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("expected none, file:DIR, s3://BUCKET/PREFIX, gs://... or az://..., not {text:?}");
        if text == "none" {
            return Ok(Self::None);
        }
        if let Some(path) = text.strip_prefix("file:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            return if path.is_empty() { Err(expected()) } else { Ok(Self::Directory(path.into())) };
        }
        let url = Url::parse(text).map_err(|_| expected())?;
        let cloud = match url.scheme() {
            "s3" => Cloud::S3,
            "gs" => Cloud::Google,
            "az" => Cloud::Azure,
            _ => return Err(expected()),
        };
        if !url.username().is_empty() || url.password().is_some() || url.query().is_some() {
            return Err("credentials and parameters have settings of their own, and no place in the URL".to_owned());
        }
        let bucket = url.host_str().unwrap_or_default().to_owned();
        if bucket.is_empty() {
            return Err(format!("there is no bucket in {text:?}"));
        }
        let prefix = Path::from_url_path(url.path()).map_err(|error| error.to_string())?;
        Ok(Self::Bucket { cloud, bucket, prefix })
    }

    /// Resolves a relative directory against `workdir`.
    pub fn below(self, workdir: &Utf8Path) -> Self {
        match self {
            Self::Directory(path) => Self::Directory(workdir.join(path)),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_a_kind_of_store_and_a_place_in_it() {
        let workdir = Utf8Path::new("/w");
        let directory = |text: &str| RemoteUrl::parse(text).unwrap().below(workdir);
        assert_eq!(directory("file:objects"), RemoteUrl::Directory("/w/objects".into()));
        assert_eq!(directory("file:///a/b"), RemoteUrl::Directory("/a/b".into()));
        assert_eq!(directory("none"), RemoteUrl::None);
        for (text, cloud, prefix) in
            [("s3://b/p/q", Cloud::S3, "p/q"), ("gs://b", Cloud::Google, ""), ("az://b/x/", Cloud::Azure, "x")]
        {
            let expected = RemoteUrl::Bucket { cloud, bucket: "b".to_owned(), prefix: Path::from(prefix) };
            assert_eq!(RemoteUrl::parse(text).unwrap(), expected, "{text}");
        }
        for text in ["", "file:", "s3://", "s3:///x", "http://x", "objects", "s3://key:secret@b", "s3://b?region=x"] {
            assert!(RemoteUrl::parse(text).is_err(), "{text}");
        }
    }
}
