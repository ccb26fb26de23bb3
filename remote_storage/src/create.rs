//! Conditional creation, where the reply may get lost although the object was created.

use bytes::Bytes;
use object_store::{ObjectStore, PutMode, PutPayload};

use super::failed::{Failed, Kind};
use super::request::Request;
use super::{Creation, Inner, RemotePath, RequestClass};
use errors::StorageError;
use metrics::StoreFault;

impl Inner {
    pub(super) async fn create(
        &self,
        class: RequestClass,
        path: &RemotePath,
        bytes: Bytes,
    ) -> Result<Creation, StorageError> {
        let request = Request { class, operation: "create", path, bytes: bytes.len() as u64 };
        self.run(request, || self.try_create(path, bytes.clone())).await
    }

    /// One attempt. An existing object with our bytes is ours: an earlier attempt created it.
    async fn try_create(&self, path: &RemotePath, bytes: Bytes) -> Result<Creation, Failed> {
        let payload = PutPayload::from_bytes(bytes.clone());
        match self.store.put_opts(path.as_path(), payload, PutMode::Create.into()).await.map_err(Failed::conditional) {
            Ok(_) => Ok(Creation::New),
            Err(Failed { kind: Kind::Exists, .. }) => self.whose(path, &bytes).await,
            Err(failed) => Err(failed),
        }
    }

    async fn whose(&self, path: &RemotePath, ours: &Bytes) -> Result<Creation, Failed> {
        let got = match self.store.get_opts(path.as_path(), object_store::GetOptions::default()).await {
            Ok(got) => got,
            // Either two creators collided and the store rejected both (409), or the object has been removed since.
            Err(object_store::Error::NotFound { .. }) => {
                let reason = "refused, although nothing is there";
                return Err(Failed::new(Kind::Fault(StoreFault::Unavailable), reason));
            }
            Err(error) => return Err(error.into()),
        };
        if got.meta.size != ours.len() as u64 {
            return Ok(Creation::Existed);
        }
        let found = got.bytes().await?;
        if found.len() != ours.len() {
            return Err(Failed::malformed(format!("{} bytes came instead of {}", found.len(), ours.len())));
        }
        Ok(if found == *ours { Creation::New } else { Creation::Existed })
    }
}
