//! Earlier versions of pages.

use pageserver_api::key::Key;
use pgdata::PageStore;
use postgres_formats::page::PageBytes;
use utils::lsn::Lsn;

/// A page as of an LSN, if it exists then.
pub(super) async fn page_at<S: PageStore>(store: &S, key: Key, lsn: Lsn) -> anyhow::Result<Option<PageBytes>> {
    let Some(bytes) = store.get(key, lsn).await? else { return Ok(None) };
    Ok(Some(PageBytes::try_from(&bytes[..])?))
}
