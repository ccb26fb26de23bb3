//! Applies many records to one page without copying the page per record.

use postgres_formats::page::PageBytes;
use postgres_formats::record::DecodedRecord;

use crate::apply::{Applied, apply_in_place};
use crate::context::RedoContext;
use crate::error::RedoError;

/// A page to which a chain of records is being applied.
///
/// Every step consumes the chain and returns it only on success: a page that a failed step may have half changed is
/// dropped, so nobody can read it.
#[derive(Debug)]
pub struct Chain {
    page: Box<PageBytes>,
}

impl Chain {
    /// Begins with `page`, all zero if there is no earlier version.
    pub fn new(page: Box<PageBytes>) -> Self {
        Self { page }
    }

    /// Applies one record as [`apply_record`](crate::apply_record) does.
    ///
    /// # Errors
    ///
    /// Those of `apply_record`.
    pub fn apply(
        mut self,
        ctx: &RedoContext,
        rec: &DecodedRecord<'_>,
        block_id: u8,
        end_lsn: u64,
    ) -> Result<(Self, Applied), RedoError> {
        let applied = apply_in_place(ctx, &mut self.page, rec, block_id, end_lsn)?;
        Ok((self, applied))
    }

    /// Makes a change for which the record has no block reference ([`crate::vm`], [`crate::slru`]).
    ///
    /// # Errors
    ///
    /// Those of `change`.
    pub fn change<E>(mut self, change: impl FnOnce(&mut PageBytes) -> Result<(), E>) -> Result<Self, E> {
        change(&mut self.page)?;
        Ok(self)
    }

    /// The page after all records.
    pub fn into_page(self) -> Box<PageBytes> {
        self.page
    }
}
