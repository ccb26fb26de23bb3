//! `pagectl verify`: every page of every relation, fork and SLRU against the files of a stopped server.
//!
//! Relations and their sizes are compared both ways; relation maps, prepared transactions and the checkpoint's counters
//! too. What Postgres does not log is masked (`redo::mask`) or allowed for (`compare`), each with its rule.

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
use camino::Utf8PathBuf;
use clap::Args;
use pageserver::datadir::DataDir;
use pageserver::pgdata::listing::Listing;
use pageserver_api::reltag::{RelTag, SlruKind};
use postgres_formats::control_file::ClusterState;
use utils::lsn::Lsn;

use crate::store::{Opened, Store, lsn_to_read};
use crate::{output, parallel};
use fork::ForkJob;
use report::Report;

/// Arguments of the command.
#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// The data directory.
    #[arg(long)]
    pgdata: Utf8PathBuf,
    /// Compare as of this LSN; the last one if not given.
    #[arg(long)]
    lsn: Option<Lsn>,
    /// Name so many differences; all are counted.
    #[arg(long, value_name = "N", default_value_t = 50)]
    max_differences: usize,
}

/// Runs the command.
pub(crate) async fn run(store: &Store, args: &VerifyArgs) -> anyhow::Result<()> {
    let (pgdata, lsn) = (&args.pgdata, args.lsn);
    let data = DataDir::open(pgdata)?;
    let opened = Arc::new(store.open().await?);
    let lsn = lsn_to_read(&opened, lsn)?;
    check_same_cluster(&opened, &data, lsn)?;
    let report = Arc::new(Report::new(args.max_differences));
    let jobs = jobs(&opened, &data, lsn, &report).await?;
    let work = {
        let (opened, report) = (Arc::clone(&opened), Arc::clone(&report));
        move |job: ForkJob| {
            let (opened, report) = (Arc::clone(&opened), Arc::clone(&report));
            async move { job.run(&opened, lsn, &report).await }
        }
    };
    parallel::for_each(jobs, work).await?;
    other::compare(&opened, &data, lsn, &report).await?;
    let (totals, differences) = (report.totals(), report.examples());
    if !store.common.json {
        differences.iter().for_each(output::line);
        totals.left_out(differences.len()).iter().for_each(output::line);
    }
    output::finish(store.common.json, &totals.to_json(lsn, &differences), totals.summary(lsn));
    if totals.different > 0 {
        bail!("{} pages or files differ from {pgdata} as of LSN {lsn}", totals.different);
    }
    Ok(())
}

/// Files of another cluster, or of another moment, would differ everywhere.
fn check_same_cluster(opened: &Opened, data: &DataDir, lsn: Lsn) -> anyhow::Result<()> {
    let (info, fields) = (opened.timeline().info(), &data.control().fields);
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
async fn jobs(opened: &Opened, data: &DataDir, lsn: Lsn, report: &Report) -> anyhow::Result<Vec<ForkJob>> {
    let listing = Listing::new(opened, lsn);
    let tablespaces = listing.tablespaces().await?;
    let mut ours = std::collections::BTreeMap::new();
    for (spcnode, dbnode) in listing.databases().await?.into_keys() {
        ours.extend(listing.relations(spcnode, dbnode).await?);
    }
    let mut jobs = Vec::new();
    for database in data.databases()? {
        let Ok(spcnode) = tablespaces.number(database.spc) else {
            report.difference(format!("{}: tablespace {} is not in the store", database.dir, database.spc));
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
