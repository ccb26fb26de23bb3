//! Compares every page of every relation, fork and SLRU with the files of a stopped server.
//!
//! Relations and their sizes are compared both ways, and so are relation maps, prepared transactions and the
//! checkpoint's counters. Whatever Postgres does not log is masked (`redo::mask`) or allowed for (`compare`), each
//! with its own rule.

pub(crate) mod compare;
mod fork;
pub(crate) mod hints;
mod history;
#[cfg(test)]
mod images;
pub(crate) mod lost_map;
mod other;
mod report;
mod sequence;

use std::sync::Arc;

use anyhow::bail;
use datadir::DataDir;
use pageserver_api::reltag::{RelTag, SlruKind};
use pgdata::TimelineStore;
use pgdata::listing::Listing;
use postgres_formats::control_file::ClusterState;
use utils::lsn::Lsn;

use crate::parallel;
use fork::ForkJob;
pub use report::Comparison;
use report::Report;

/// Compares the timeline as of `lsn` with all files. Describes up to `max_examples` differences, and counts all.
///
/// # Errors
/// If the files belong to another cluster, to another LSN, or to a running server, or cannot be read.
pub async fn compare(
    store: &Arc<TimelineStore>,
    data: &DataDir,
    lsn: Lsn,
    max_examples: usize,
) -> anyhow::Result<Comparison> {
    check_same_cluster(store, data, lsn)?;
    let report = Arc::new(Report::new(max_examples));
    let jobs = jobs(store, data, lsn, &report).await?;
    let work = {
        let (store, report) = (Arc::clone(store), Arc::clone(&report));
        move |job: ForkJob| {
            let (store, report) = (Arc::clone(&store), Arc::clone(&report));
            async move { job.run(&store, lsn, &report).await }
        }
    };
    parallel::for_each(jobs, work).await?;
    other::compare(store, data, lsn, &report).await?;
    Ok(report.comparison(lsn))
}

/// Checks cluster and LSN: files of another cluster or LSN would differ everywhere.
fn check_same_cluster(store: &TimelineStore, data: &DataDir, lsn: Lsn) -> anyhow::Result<()> {
    let (info, fields) = (store.timeline().info(), &data.control().fields);
    if data.control().state() != ClusterState::Shutdowned {
        bail!("{}: the server was not cleanly shut down (state {:?})", data.root(), data.control().state());
    }
    if fields.system_identifier != info.system_identifier {
        let (theirs, ours) = (fields.system_identifier, info.system_identifier);
        bail!("{} is of another cluster: system identifier {theirs}, expected {ours}", data.root());
    }
    if lsn < fields.checkpoint {
        bail!("{} is at LSN {}, after LSN {lsn}: ingest its WAL first", data.root(), fields.checkpoint);
    }
    Ok(())
}

/// One job for each fork and SLRU segment that exists on either side.
async fn jobs(store: &TimelineStore, data: &DataDir, lsn: Lsn, report: &Report) -> anyhow::Result<Vec<ForkJob>> {
    let listing = Listing::new(store, lsn);
    let tablespaces = listing.tablespaces().await?;
    let mut ours = std::collections::BTreeMap::new();
    for (spcnode, dbnode) in listing.databases().await?.into_keys() {
        ours.extend(listing.relations(spcnode, dbnode).await?);
    }
    let mut jobs = Vec::new();
    for database in data.databases()? {
        let Ok(spcnode) = tablespaces.number(database.spc) else {
            report.difference(format!("{}: tablespace {} is not in the timeline", database.dir, database.spc));
            continue;
        };
        for ((relnode, forknum), files) in database.forks()? {
            let rel = RelTag { spcnode, dbnode: database.db, relnode, forknum };
            jobs.push(ForkJob::relation(rel, ours.remove(&rel), files));
        }
    }
    jobs.extend(ours.into_iter().map(|(rel, size)| ForkJob::relation(rel, Some(size), Default::default())));
    for kind in SlruKind::ALL {
        let mut ours = listing.slru_segments(kind).await?;
        for (segno, files) in data.slru_segments(kind)? {
            jobs.push(ForkJob::slru(kind, segno, ours.remove(&segno), files));
        }
        jobs.extend(ours.into_iter().map(|(segno, size)| ForkJob::slru(kind, segno, Some(size), Default::default())));
    }
    Ok(jobs)
}
