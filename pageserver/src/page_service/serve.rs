//! Answers to single requests.

use bytes::{Bytes, BytesMut};
use pageserver_api::key::{slru_block_key, slru_dir_key, slru_segment_size_key};
use pageserver_api::pagestream::{Answer, PAGE_SIZE, Query, Request, SLRU_PAGES_PER_SEGMENT};
use pageserver_api::reltag::{DEFAULT_TABLESPACE, SlruKind};
use utils::lsn::Lsn;

use super::pages::{Reader, blocks_or_error};
use errors::{ErrorKind, StorageError};
use pgdata::directory::{SlruDir, decode, decode_size};

/// An answer, or why there is none.
pub(super) type Served = Result<Answer<Bytes>, StorageError>;

/// Wraps a page as an answer.
pub(super) fn page(page: Result<Bytes, StorageError>) -> Served {
    page.map(Answer::Page)
}

/// Answers a request that is not for a page.
pub(super) async fn other(reader: &Reader<'_>, request: &Request) -> Served {
    let lsn = reader.lsn(&request.header).await?;
    match request.query {
        Query::Exists(rel) => Ok(Answer::Exists(reader.size(rel, lsn).await?.1.is_some())),
        Query::Nblocks(rel) => {
            let (rel, size) = reader.size(rel, lsn).await?;
            Ok(Answer::Nblocks(blocks_or_error(rel, size, lsn)?))
        }
        Query::DbSize { dbnode } => db_size(reader, dbnode, lsn).await,
        Query::GetSlruSegment { kind, segno } => slru_segment(reader, kind, segno, lsn).await,
        Query::GetPage(..) => page(Err(StorageError::Internal("a request for a page outside a batch".to_owned()))),
    }
}

async fn db_size(reader: &Reader<'_>, dbnode: u32, lsn: Lsn) -> Served {
    let sizes = reader.listing(lsn).relations(DEFAULT_TABLESPACE, dbnode).await?;
    let blocks: u64 = sizes.into_values().map(u64::from).sum();
    Ok(Answer::DbSize(i64::try_from(blocks.saturating_mul(PAGE_SIZE as u64)).unwrap_or(i64::MAX)))
}

async fn slru_segment(reader: &Reader<'_>, kind: SlruKind, segno: u32, lsn: Lsn) -> Served {
    let listing = reader.listing(lsn);
    let dir: SlruDir = decode(slru_dir_key(kind), &listing.required(slru_dir_key(kind)).await?)?;
    let key = slru_segment_size_key(kind, segno);
    if !dir.contains(&segno) {
        return Err(StorageError::MissingKey { key, lsn });
    }
    let pages = decode_size(key, &listing.required(key).await?)?;
    if pages > SLRU_PAGES_PER_SEGMENT {
        return Err(StorageError::Internal(format!("segment {segno} of {kind:?} has {pages} pages")));
    }
    let found = listing.dense(slru_block_key(kind, segno, 0)..slru_block_key(kind, segno, pages)).await?;
    let mut content = BytesMut::with_capacity(found.len() * PAGE_SIZE);
    for (key, page) in found {
        if page.len() != PAGE_SIZE {
            return Err(StorageError::Internal(format!("value of key {key} has {} bytes", page.len())));
        }
        content.extend_from_slice(&page);
    }
    Ok(Answer::SlruSegment(content.freeze()))
}

/// The answer that reports an error to the client. Errors that should not happen are logged as such, with the number of
/// the client and the one that it has given its request.
pub(super) fn error_answer(request: &Request, client: u64, error: &StorageError) -> Answer<Bytes> {
    let reqid = request.header.reqid;
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::Internal => {
            tracing::error!(client, reqid, "{:?} failed: {error}", request.query)
        }
        _ => tracing::info!(client, reqid, "{:?} failed: {error}", request.query),
    }
    Answer::Error(Bytes::from(error.to_string()))
}
