//! Opens the bucket described by the settings.

use std::sync::Arc;
use std::time::Duration;

use camino::Utf8PathBuf;
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use super::credentials::CredentialsFile;
use super::directory::Directory;
use super::scratch::Scratch;
use super::{Cloud, Creation, RemoteOptions, RemotePath, RemoteStorage, RemoteUrl, RequestClass};
use errors::{ErrorKind, StorageError};

/// A connection that is not established within this time counts as failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Added to the client's own timeout of a request, which matters only for parts of uploads: the client retries these
/// itself.
const PART_ALLOWANCE: Duration = Duration::from_secs(16);
/// Pause between two checks of a bucket that is not reachable yet.
const START_PAUSE: Duration = Duration::from_millis(500);

/// Which bucket to use, and how to access it.
#[derive(Clone, Debug)]
pub struct StoreSettings {
    /// Its location. Relative directories have been resolved.
    pub url: RemoteUrl,
    /// Its name in errors and log lines.
    pub name: String,
    /// Its endpoint, if not the cloud's default.
    pub endpoint: Option<String>,
    /// The bucket's region.
    pub region: Option<String>,
    /// Whether requests name an S3 bucket in the path instead of the host name.
    pub path_style: bool,
    /// Whether plain HTTP is allowed.
    pub allow_http: bool,
    /// Whether the payload of writes to S3 is signed; if not, it still has a checksum.
    pub sign_payload: bool,
    /// The credentials file; by default credentials come from where the cloud's own tools look for them.
    pub credentials_file: Option<Utf8PathBuf>,
    /// Where everything goes that is written; then the bucket is only read.
    pub scratch: Option<Utf8PathBuf>,
    /// Limits of requests.
    pub options: RemoteOptions,
}

impl RemoteStorage {
    /// Opens a bucket without making any request yet. `None` if the settings specify none.
    ///
    /// # Errors
    /// If the settings contradict each other, or a directory cannot be created.
    pub async fn open(settings: &StoreSettings) -> Result<Option<Self>, StorageError> {
        let store = settings.open().await?;
        let directory = match &settings.url {
            RemoteUrl::Directory(path) if settings.scratch.is_none() => Some(path.clone()),
            _ => None,
        };
        Ok(store.map(|store| Self::new(store, &settings.name, settings.options.clone(), directory)))
    }

    /// Waits for at most `timeout` until the bucket answers, and checks that it refuses to create existing objects:
    /// otherwise two servers could hold the same generation.
    ///
    /// # Errors
    /// If the bucket does not answer, or does not refuse.
    pub async fn wait_until_usable(&self, timeout: Duration) -> Result<(), StorageError> {
        let mut last = None;
        let usable = async {
            loop {
                match self.check_conditions().await {
                    Err(error) if error.kind() == ErrorKind::Retry => last = Some(error),
                    outcome => return outcome,
                }
                env::clock::sleep(START_PAUSE).await;
            }
        };
        let outcome = env::clock::timeout(timeout, usable).await;
        outcome.unwrap_or_else(|_| {
            let reason = last.map_or_else(|| "no answer".to_owned(), |error| error.to_string());
            Err(StorageError::Invalid(format!("the bucket {} is out of reach: {reason}", self.url())))
        })
    }

    async fn check_conditions(&self) -> Result<(), StorageError> {
        let path = RemotePath::condition_probe();
        let create = || self.create(RequestClass::Control, &path, env::random::bytes::<16>().to_vec().into());
        if create().await? == Creation::New && create().await? == Creation::New {
            return Err(StorageError::Invalid(format!(
                "the bucket {} ignores conditions of writes (If-None-Match): servers could not be told apart",
                self.url()
            )));
        }
        Ok(())
    }
}

fn below(store: Arc<dyn ObjectStore>, prefix: &Path) -> Arc<dyn ObjectStore> {
    if prefix.as_ref().is_empty() { store } else { Arc::new(PrefixStore::new(store, prefix.clone())) }
}

/// Retries are our own responsibility.
fn no_retries() -> RetryConfig {
    RetryConfig { max_retries: 0, retry_timeout: Duration::ZERO, ..RetryConfig::default() }
}

impl StoreSettings {
    /// Opens the underlying store, for callers that put a layer between it and [`RemoteStorage`].
    ///
    /// # Errors
    /// Those of [`RemoteStorage::open`].
    pub async fn open(&self) -> Result<Option<Arc<dyn ObjectStore>>, StorageError> {
        let bucket: Arc<dyn ObjectStore> = match &self.url {
            RemoteUrl::None => return Ok(None),
            RemoteUrl::Directory(path) => Arc::new(Directory::open(path).await?),
            RemoteUrl::Bucket { cloud, bucket, prefix } => {
                let store = self.cloud(*cloud, bucket);
                let wrong = |error| StorageError::Invalid(format!("remote_storage {}: {error}", self.name));
                below(store.map_err(wrong)?, prefix)
            }
        };
        match &self.scratch {
            None => Ok(Some(bucket)),
            Some(dir) => Ok(Some(Arc::new(Scratch::open(bucket, dir).await?))),
        }
    }

    fn client(&self) -> ClientOptions {
        ClientOptions::new()
            .with_allow_http(self.allow_http)
            .with_timeout(self.options.attempt_timeout + PART_ALLOWANCE)
            .with_connect_timeout(CONNECT_TIMEOUT.min(self.options.attempt_timeout))
            .with_pool_max_idle_per_host(self.options.read_concurrency.get())
    }

    fn cloud(&self, cloud: Cloud, bucket: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
        // Must precede the first client. There is no other provider, so this cannot conflict.
        let _ = rustls::crypto::ring::default_provider().install_default();
        match cloud {
            Cloud::S3 => self.s3(bucket),
            Cloud::Google => self.google(bucket),
            Cloud::Azure => self.azure(bucket),
        }
    }

    fn s3(&self, bucket: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut builder = AmazonS3Builder::from_env()
            .with_bucket_name(bucket)
            .with_virtual_hosted_style_request(!self.path_style)
            .with_client_options(self.client())
            .with_retry(no_retries());
        if !self.sign_payload {
            builder = builder.with_unsigned_payload(true).with_checksum_algorithm(Checksum::CRC64NVME);
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        if let Some(path) = &self.credentials_file {
            builder = builder.with_credentials(Arc::new(CredentialsFile::new(path.clone())));
        }
        Ok(Arc::new(builder.build()?))
    }

    fn google(&self, bucket: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut builder = GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(self.client())
            .with_retry(no_retries());
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_base_url(endpoint);
        }
        if let Some(path) = &self.credentials_file {
            builder = builder.with_service_account_path(path.as_str());
        }
        Ok(Arc::new(builder.build()?))
    }

    fn azure(&self, container: &str) -> object_store::Result<Arc<dyn ObjectStore>> {
        let mut builder = MicrosoftAzureBuilder::from_env()
            .with_container_name(container)
            .with_allow_http(self.allow_http)
            .with_client_options(self.client())
            .with_retry(no_retries());
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint.clone());
        }
        if self.credentials_file.is_some() {
            let source = "Azure's credentials come from its environment variables (AZURE_...)".into();
            return Err(object_store::Error::NotSupported { source });
        }
        Ok(Arc::new(builder.build()?))
    }
}
