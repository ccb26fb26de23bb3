//! A bucket whose objects are as old as the simulation's clock says: with real times none would ever age in it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

/// When each object was written, by the clock that nobody sets.
#[derive(Clone, Debug, Default)]
struct Times(Arc<Mutex<BTreeMap<Path, SystemTime>>>);

impl Times {
    fn note(&self, path: &Path) {
        self.0.lock().insert(path.clone(), env::clock::steady_now());
    }

    fn correct(&self, mut meta: ObjectMeta) -> ObjectMeta {
        if let Some(time) = self.0.lock().get(&meta.location) {
            meta.last_modified = (*time).into();
        }
        meta
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct AgedStore {
    inner: InMemory,
    times: Times,
}

impl AgedStore {
    /// The names of all objects, in order.
    pub async fn paths(&self) -> Vec<String> {
        let listed: Vec<Result<ObjectMeta>> = self.inner.list(None).collect().await;
        let mut paths: Vec<String> = listed.into_iter().flatten().map(|meta| meta.location.to_string()).collect();
        paths.sort_unstable();
        paths
    }
}

#[async_trait]
impl ObjectStore for AgedStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let done = self.inner.put_opts(path, payload, options).await?;
        self.times.note(path);
        Ok(done)
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let upload = self.inner.put_multipart_opts(path, options).await?;
        Ok(Box::new(AgedUpload { upload, times: self.times.clone(), path: path.clone() }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let got = self.inner.get_opts(path, options).await?;
        Ok(GetResult { meta: self.times.correct(got.meta.clone()), ..got })
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let times = self.times.clone();
        self.inner.list(prefix).map(move |meta| meta.map(|meta| times.correct(meta))).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let listed = self.inner.list_with_delimiter(prefix).await?;
        let objects = listed.objects.into_iter().map(|meta| self.times.correct(meta)).collect();
        Ok(ListResult { objects, ..listed })
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        self.times.note(to);
        Ok(())
    }
}

/// An object is written when its upload is completed.
#[derive(Debug)]
struct AgedUpload {
    upload: Box<dyn MultipartUpload>,
    times: Times,
    path: Path,
}

#[async_trait]
impl MultipartUpload for AgedUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        self.upload.put_part(data)
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let done = self.upload.complete().await?;
        self.times.note(&self.path);
        Ok(done)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

impl fmt::Display for AgedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AgedStore({})", self.inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::TryStreamExt;
    use object_store::ObjectStoreExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn objects_are_as_old_as_the_clock_of_the_simulation_says() {
        let (wall, day) = (SystemTime::UNIX_EPOCH + Duration::from_secs(1_577_836_800), Duration::from_secs(86_400));
        env::clock::simulate(wall);
        let (store, whole, parts) = (AgedStore::default(), Path::from("a/whole"), Path::from("a/parts"));
        store.put(&whole, "1".into()).await.unwrap();
        let mut upload = store.put_multipart(&parts).await.unwrap();
        upload.put_part("2".into()).await.unwrap();
        env::clock::sleep(day).await;
        upload.complete().await.unwrap();
        let listed: Vec<ObjectMeta> = store.list(None).try_collect().await.unwrap();
        let here = store.list_with_delimiter(Some(&Path::from("a"))).await.unwrap().objects;
        for found in [listed, here] {
            let times: Vec<SystemTime> = found.into_iter().map(|meta| meta.last_modified.into()).collect();
            assert_eq!(times, [wall + day, wall]);
        }
        store.put(&whole, "3".into()).await.unwrap();
        assert_eq!(SystemTime::from(store.head(&whole).await.unwrap().last_modified), wall + day);
        assert_eq!(SystemTime::from(store.get(&parts).await.unwrap().meta.last_modified), wall + day);
        env::clock::end_simulation();
    }
}
