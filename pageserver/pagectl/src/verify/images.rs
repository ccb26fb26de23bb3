//! A store of images, for tests of what is read from a page's history.

use std::collections::BTreeMap;

use bytes::Bytes;
use pageserver::errors::StorageError;
use pageserver::pgdata::PageStore;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use postgres_formats::page::{PageBytes, PageRef};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

/// Images only.
#[derive(Default)]
pub(super) struct Images(pub(super) BTreeMap<(Key, Lsn), Bytes>);

impl Images {
    /// The versions of one page, each at its LSN.
    pub(super) fn of(key: Key, pages: &[PageBytes]) -> Self {
        let image = |page: &PageBytes| ((key, Lsn(PageRef::new(page).lsn())), Bytes::copy_from_slice(page));
        Self(pages.iter().map(image).collect())
    }
}

impl PageStore for Images {
    async fn get(&self, key: Key, lsn: Lsn) -> Result<Option<Bytes>, StorageError> {
        Ok(self.0.range((key, Lsn(0))..=(key, lsn)).next_back().map(|(_, image)| image.clone()))
    }
    async fn get_many(&self, _: &KeySpace, _: Lsn) -> Result<BTreeMap<Key, Bytes>, StorageError> {
        Ok(BTreeMap::new())
    }
    async fn put_batch(&self, _: SerializedValueBatch) -> Result<(), StorageError> {
        Ok(())
    }
    async fn finish_write(&self, _: Lsn, _: Lsn) -> Result<(), StorageError> {
        Ok(())
    }
    fn set_wal_log_hints(&self, _: Lsn, _: bool) {}
}
