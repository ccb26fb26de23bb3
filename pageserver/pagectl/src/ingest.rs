//! `pagectl ingest`: WAL segment files from where the store stands to the end of the WAL.

use anyhow::{Context, bail};
use camino::Utf8Path;
use indicatif::ProgressBar;
use pageserver::ingest::WalIngest;
use postgres_formats::version::PgVersion;
use serde_json::json;
use utils::lsn::Lsn;
use wal_decoder::stream::{EndReason, WalError, WalStart, WalStreamConfig, WalStreamDecoder};

use crate::output;
use crate::store::{Opened, Store};
use crate::wal_files::WalFiles;

/// One run.
struct Run<'a> {
    files: &'a WalFiles,
    version: PgVersion,
    decoder: WalStreamDecoder,
    ingest: WalIngest<Opened>,
    bar: ProgressBar,
    records: u64,
}

/// Runs the command.
pub(crate) async fn run(store: &Store, wal: &Utf8Path) -> anyhow::Result<()> {
    let opened = store.open().await?;
    let (info, at) = (opened.timeline().info(), opened.timeline().record_lsn());
    let version = PgVersion::from_major(info.pg_version).context("the store has an unknown version")?;
    let files = WalFiles::open(wal, info.wal_segment_size)?;
    let config = WalStreamConfig {
        version,
        segment_size: info.wal_segment_size,
        system_identifier: Some(info.system_identifier),
        feed_from: at.last.segment_start(info.wal_segment_size.into()),
        start: WalStart::Record { lsn: at.last, previous: at.prev.is_valid().then_some(at.prev) },
    };
    let decoder = WalStreamDecoder::new(&config)?;
    let ingest = WalIngest::load(opened.clone(), at.last, at.prev).await?;
    let bar = output::byte_bar(files.bytes_from(at.last));
    let began = env::clock::now();
    let mut run = Run { files: &files, version, decoder, ingest, bar, records: 0 };
    let ended = run.all(at.last).await;
    // What came before an error is whole: it is kept.
    opened.timeline().flush(&store.ctx).await.context("cannot make the ingested WAL durable")?;
    run.bar.finish_and_clear();
    let (end, records) = (opened.timeline().last_record_lsn(), run.records);
    drop(run);
    opened.timeline().clone().shutdown().await;
    let end_of_wal = ended?;
    let seconds = (env::clock::now() - began).as_secs_f64();
    let bytes = end.0 - at.last.0;
    let result = json!({
        "start_lsn": at.last.to_string(), "end_lsn": end.to_string(), "records": records, "bytes": bytes,
        "seconds": seconds, "end_of_wal": end_of_wal,
    });
    let rate = records as f64 / seconds.max(1e-6);
    let summary = format!(
        "ingested {records} records, {bytes} bytes of WAL, from LSN {} to {end} in {seconds:.1} s ({rate:.0} \
         records/s); {end_of_wal}",
        at.last
    );
    output::finish(store.common.json, &result, summary);
    Ok(())
}

impl Run<'_> {
    /// All records from `start` on. Returns why there are no more.
    async fn all(&mut self, start: Lsn) -> anyhow::Result<String> {
        let mut pieces = self.files.read(start);
        while let Some(piece) = pieces.recv().await {
            let fed = match piece {
                Ok(piece) => self.feed(piece.lsn, piece.bytes).await,
                Err(error) => Err(error),
            };
            match fed {
                Ok(None) => {}
                Ok(Some(end)) => {
                    self.ingest.commit().await?;
                    return Ok(end);
                }
                Err(error) => {
                    // Not after an error of ingest itself: then there is nothing whole to commit.
                    if !error.is::<pageserver::ingest::IngestError>() {
                        self.ingest.commit().await?;
                    }
                    return Err(error);
                }
            }
            tokio::task::yield_now().await;
        }
        self.ingest.commit().await?;
        Ok(format!("no segment file follows LSN {}", self.decoder.feed_lsn()))
    }

    /// Takes in a piece; the end of the WAL, if it is in there.
    async fn feed(&mut self, lsn: Lsn, bytes: bytes::Bytes) -> anyhow::Result<Option<String>> {
        let len = bytes.len() as u64;
        self.decoder.feed_at(lsn, bytes)?;
        loop {
            let record = match self.decoder.next() {
                Ok(Some(record)) => record,
                Ok(None) => break,
                Err(error) => return self.end(error).map(Some),
            };
            let taken = self.ingest.ingest(record.start, record.end, &record.bytes).await;
            taken.with_context(|| format!("cannot ingest {}", self.place(record.start)))?;
            self.records += 1;
        }
        self.bar.inc(len);
        self.bar.set_message(format!("{} records, LSN {}", self.records, self.ingest.last_record()));
        Ok(None)
    }

    /// Tells the end of the WAL from damage.
    fn end(&self, error: WalError) -> anyhow::Result<String> {
        let place = error.place().map_or_else(|| error.lsn(), |place| place.lsn);
        let may_be_end = matches!(
            error,
            WalError::EndOfWal { reason: EndReason::ZeroLength | EndReason::ZeroPage | EndReason::StalePage(_), .. }
        );
        if !may_be_end {
            return Err(error).with_context(|| format!("damaged or foreign WAL: {}", self.place(place)));
        }
        if let Some(next) = self.files.continues_after(place, self.version)? {
            bail!("damaged WAL: {}: {error}; but the WAL goes on at LSN {next}", self.place(place));
        }
        Ok(error.to_string())
    }

    fn place(&self, lsn: Lsn) -> String {
        let size = u64::from(self.ingest.parameters().wal_segment_size);
        match self.files.path(lsn) {
            Some(path) => format!("{path} offset {}", lsn.segment_offset(size)),
            None => format!("LSN {lsn}"),
        }
    }
}
