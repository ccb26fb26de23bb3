//! Databases, created empty or as a copy, and dropped; relation maps.

use bytes::Bytes;
use pageserver_api::key::{rel_block_key, relmap_key};
use pageserver_api::reltag::RelTag;
use postgres_formats::dbase::{DatabaseDir, DbaseRecord};
use postgres_formats::relmap::{RelMapUpdate, decode};

use super::{IngestError, WalIngest};
use crate::listing::Listing;
use crate::store::PageStore;

/// Pages of a copied relation that are read at a time.
const COPY_PAGES: u32 = 256;

impl<S: PageStore> WalIngest<S> {
    pub(super) async fn apply_dbase(&mut self, record: &DbaseRecord) -> Result<(), IngestError> {
        match record {
            DbaseRecord::CreateWalLog(dir) => {
                let spcnode = self.tablespace(dir.tablespace)?;
                self.relations.add_database(spcnode, dir.db, false);
                Ok(())
            }
            DbaseRecord::CreateFileCopy { to, from } => self.copy_database(*to, *from).await,
            DbaseRecord::Drop { db, tablespaces } => {
                for tablespace in tablespaces {
                    let spcnode = self.tablespace(*tablespace)?;
                    self.drop_database(spcnode, *db).await?;
                }
                Ok(())
            }
        }
    }

    fn tablespace(&self, oid: u32) -> Result<u32, IngestError> {
        let number = self.tablespaces.number(oid);
        number.map_err(|source| IngestError::Tablespace { lsn: self.start, source })
    }

    /// Copies the relation map and all relations as of the previous record.
    async fn copy_database(&mut self, to: DatabaseDir, from: DatabaseDir) -> Result<(), IngestError> {
        let (to_spc, from_spc) = (self.tablespace(to.tablespace)?, self.tablespace(from.tablespace)?);
        let Some(has_relmap) = self.relations.databases().get(&(from_spc, from.db)).copied() else {
            return Err(self.inconsistent(format_args!("database {} does not exist in its tablespace", from.db)));
        };
        self.drop_database(to_spc, to.db).await?;
        self.relations.add_database(to_spc, to.db, has_relmap);
        let listing = self.before().await?;
        let relmap = match has_relmap {
            true => Some(listing.required(relmap_key(from_spc, from.db)).await?),
            false => None,
        };
        let rels = listing.relations(from_spc, from.db).await?;
        if let Some(relmap) = relmap {
            self.put_image(relmap_key(to_spc, to.db), relmap);
        }
        for (rel, blocks) in rels {
            let target = RelTag { spcnode: to_spc, dbnode: to.db, ..rel };
            self.relations.create(target, blocks);
            self.copy_pages(rel, target, blocks).await?;
        }
        Ok(())
    }

    async fn copy_pages(&mut self, from: RelTag, to: RelTag, blocks: u32) -> Result<(), IngestError> {
        let mut next = 0;
        while next < blocks {
            let end = blocks.min(next + COPY_PAGES);
            let range = rel_block_key(from, next)..rel_block_key(from, end);
            for (key, page) in Listing::new(&self.store, self.committed).dense(range).await? {
                self.put_image(rel_block_key(to, key.field6), page);
            }
            self.put_full_piece().await?;
            next = end;
        }
        Ok(())
    }

    /// Removes a database and all its relations in a tablespace.
    async fn drop_database(&mut self, spcnode: u32, dbnode: u32) -> Result<(), IngestError> {
        if !self.relations.databases().contains_key(&(spcnode, dbnode)) {
            return Ok(());
        }
        let rels = self.before().await?.relations(spcnode, dbnode).await?;
        rels.keys().for_each(|rel| self.relations.remove(*rel));
        self.relations.remove_database(spcnode, dbnode);
        Ok(())
    }

    pub(super) fn apply_relmap(&mut self, update: &RelMapUpdate<'_>) -> Result<(), IngestError> {
        decode(self.version, update.file).map_err(|error| self.inconsistent(error))?;
        let spcnode = self.tablespace(update.tablespace)?;
        self.relations.add_database(spcnode, update.db, true);
        self.put_image(relmap_key(spcnode, update.db), Bytes::copy_from_slice(update.file));
        Ok(())
    }
}
