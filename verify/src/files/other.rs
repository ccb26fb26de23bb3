//! Compares what does not consist of pages: relation maps, prepared transactions, replication origin progress,
//! counters.

use std::collections::BTreeMap;

use datadir::DataDir;
use pageserver_api::key::{relmap_key, twophase_file_key};
use pgdata::listing::Listing;
use postgres_formats::{relmap, replorigin, twophase};
use utils::lsn::Lsn;

use super::report::Report;
use pgdata::TimelineStore;

/// Compares all of these. Each file counts as a page.
pub(super) async fn compare(store: &TimelineStore, data: &DataDir, lsn: Lsn, report: &Report) -> anyhow::Result<()> {
    let listing = Listing::new(store, lsn);
    relation_maps(&listing, data, report).await?;
    prepared(&listing, data, report).await?;
    origins(&listing, data, report).await?;
    counters(&listing, data, report).await
}

async fn relation_maps(listing: &Listing<'_, TimelineStore>, data: &DataDir, report: &Report) -> anyhow::Result<()> {
    let tablespaces = listing.tablespaces().await?;
    let mut ours = listing.databases().await?;
    let size = relmap::file_size(data.version());
    for database in data.databases()? {
        let Ok(spcnode) = tablespaces.number(database.spc) else { continue };
        let has_relmap = ours.remove(&(spcnode, database.db));
        let path = database.dir.join(relmap::FILE_NAME);
        let theirs = match std::fs::read(&path) {
            Ok(bytes) => Some(bytes),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => anyhow::bail!("cannot read {path}: {error}"),
        };
        let ours = match has_relmap {
            Some(true) => Some(listing.required(relmap_key(spcnode, database.db)).await?),
            _ => None,
        };
        match (ours, theirs) {
            (None, None) => {}
            (Some(ours), Some(theirs)) if theirs.get(..size) == Some(&ours[..]) => report.same(),
            _ => report.difference(format!("{path}: differs from the timeline's")),
        }
    }
    for (spcnode, dbnode) in ours.into_keys() {
        // A database has no directory in a tablespace once its last relation has left it.
        if !listing.relations(spcnode, dbnode).await?.is_empty() {
            report.difference(format!("database {dbnode} in tablespace {spcnode} exists only in the timeline"));
        }
    }
    Ok(())
}

async fn prepared(listing: &Listing<'_, TimelineStore>, data: &DataDir, report: &Report) -> anyhow::Result<()> {
    let mut ours = listing.twophase(data.version()).await?;
    for (xid, path) in data.twophase_files()? {
        let bytes = std::fs::read(&path).map_err(|error| anyhow::anyhow!("cannot read {path}: {error}"))?;
        let stored = match ours.remove(&xid) {
            true => Some(listing.required(twophase_file_key(xid)).await?),
            false => None,
        };
        match stored {
            Some(stored) if twophase::state_file(&stored) == bytes => report.same(),
            _ => report.difference(format!("{path}: differs from the timeline's")),
        }
    }
    for xid in ours {
        report.difference(format!("prepared transaction {xid} exists only in the timeline"));
    }
    Ok(())
}

/// The server may list an origin without progress: it was in use, but has replicated nothing.
async fn origins(listing: &Listing<'_, TimelineStore>, data: &DataDir, report: &Report) -> anyhow::Result<()> {
    let path = data.root().join(replorigin::CHECKPOINT_FILE);
    let (mut ours, mut theirs) = (listing.replication_origins().await?, BTreeMap::new());
    if let Some(bytes) = data.read_optional(replorigin::CHECKPOINT_FILE)? {
        theirs = replorigin::decode_checkpoint(&bytes).map_err(|error| anyhow::anyhow!("{path}: {error}"))?;
    }
    ours.retain(|_, lsn| lsn.is_valid());
    theirs.retain(|_, lsn| lsn.is_valid());
    if ours == theirs {
        report.same();
    } else {
        report.difference(format!("{path}: replication origins are at {theirs:?}, in the timeline at {ours:?}"));
    }
    Ok(())
}

/// At the shutdown checkpoint the stored counters equal those of the control file.
async fn counters(listing: &Listing<'_, TimelineStore>, data: &DataDir, report: &Report) -> anyhow::Result<()> {
    let (ours, theirs) = (listing.checkpoint().await?, data.control().fields.checkpoint_copy);
    if ours == theirs {
        report.same();
    } else if ours.redo == theirs.redo {
        report.difference(format!("{}: its checkpoint differs: {theirs:?}, stored {ours:?}", data.root()));
    }
    Ok(())
}
