//! All keys that exist at an LSN. Any other key belongs to a dropped relation and may be garbage-collected.

use std::ops::Range;

use pageserver_api::key::{
    CHECKPOINT_KEY, COMMIT_TIME_KEY, CONTROLFILE_KEY, DBDIR_KEY, Key, PARAMETERS_KEY, SETTINGS_KEY, TABLESPACES_KEY,
    TWOPHASEDIR_KEY, rel_block_key, rel_entry_range, rel_size_key, relmap_key, repl_origin_key_range, slru_block_key,
    slru_dir_key, slru_segment_size_key, twophase_file_key,
};
use pageserver_api::reltag::SlruKind;
use postgres_formats::version::PgVersion;

use super::listing::Listing;
use crate::store::PageStore;
use errors::StorageError;

/// The existing keys, as ranges in no particular order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExistingKeys {
    /// Every key of these ranges has a value.
    pub dense: Vec<Range<Key>>,
    /// Some keys of these ranges have a value.
    pub sparse: Vec<Range<Key>>,
}

impl ExistingKeys {
    /// Finds them.
    pub async fn of<S: PageStore>(listing: &Listing<'_, S>, version: PgVersion) -> Result<Self, StorageError> {
        let mut keys = Self::default();
        for ((spcnode, dbnode), has_relmap) in listing.databases().await? {
            keys.dense.extend(has_relmap.then(|| one(relmap_key(spcnode, dbnode))));
            keys.sparse.push(rel_entry_range(spcnode, dbnode));
            for (rel, blocks) in listing.relations(spcnode, dbnode).await? {
                keys.add(rel_block_key(rel, 0)..rel_block_key(rel, blocks));
                keys.dense.push(one(rel_size_key(rel)));
            }
        }
        for kind in SlruKind::ALL {
            keys.dense.push(one(slru_dir_key(kind)));
            for (segno, pages) in listing.slru_segments(kind).await? {
                keys.add(slru_block_key(kind, segno, 0)..slru_block_key(kind, segno, pages));
                keys.dense.push(one(slru_segment_size_key(kind, segno)));
            }
        }
        let prepared = listing.twophase(version).await?;
        keys.dense.extend(prepared.into_iter().map(|xid| one(twophase_file_key(xid))));
        let single = [DBDIR_KEY, TWOPHASEDIR_KEY, CONTROLFILE_KEY, CHECKPOINT_KEY, TABLESPACES_KEY, PARAMETERS_KEY];
        keys.dense.extend(single.map(one));
        keys.sparse.extend([one(COMMIT_TIME_KEY), one(SETTINGS_KEY), repl_origin_key_range()]);
        Ok(keys)
    }

    fn add(&mut self, range: Range<Key>) {
        if !range.is_empty() {
            self.dense.push(range);
        }
    }
}

fn one(key: Key) -> Range<Key> {
    key..key.next()
}
