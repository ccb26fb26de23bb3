//! `pagectl ingest`: ingests WAL segment files from the end of the store's history to the end of the WAL.

use anyhow::{Context, anyhow, bail};
use camino::Utf8Path;
use indicatif::ProgressBar;
use pgdata::ingest::WalIngest;
use pgdata::ingest::pipeline::{IntakeError, Progress, WalIntake};
use postgres_formats::version::PgVersion;
use serde_json::json;
use utils::lsn::Lsn;
use wal_decoder::stream::{EndReason, WalError, WalStart, WalStreamConfig, WalStreamDecoder};

use crate::output;
use crate::store::Store;
use datadir::wal_files::WalFiles;

/// One run.
struct Run<'a> {
    files: &'a WalFiles,
    version: PgVersion,
    segment_size: u32,
    bar: ProgressBar,
}

/// Runs the command.
pub(crate) async fn run(store: &Store, wal: &Utf8Path) -> anyhow::Result<()> {
    let opened = store.open().await?;
    let (info, at) = (opened.timeline().info(), opened.timeline().record_lsn());
    let version = PgVersion::from_major(info.pg_version).context("the store has an unknown version")?;
    let segment_size = info.wal_segment_size;
    let files = WalFiles::open(wal, segment_size)?;
    let config = WalStreamConfig {
        version,
        segment_size,
        system_identifier: Some(info.system_identifier),
        feed_from: at.last.segment_start(segment_size.into()),
        start: WalStart::Record { lsn: at.last, previous: at.prev.is_valid().then_some(at.prev) },
    };
    let decoder = WalStreamDecoder::new(&config)?;
    let ingest = WalIngest::load(opened.clone(), at.last, at.prev).await?;
    let began = env::clock::now();
    let run = Run { files: &files, version, segment_size, bar: output::byte_bar(files.bytes_from(at.last)) };
    let (progress, ended) = run.all(at.last, WalIntake::start(decoder, ingest)).await;
    // Everything ingested before an error is consistent: it is kept.
    opened.timeline().flush(&store.ctx).await.context("cannot make the ingested WAL durable")?;
    run.bar.finish_and_clear();
    let (end, records) = (opened.timeline().last_record_lsn(), progress.records);
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
    /// Ingests all records from `start` on. Returns the reason why there are no more.
    async fn all(&self, start: Lsn, intake: WalIntake) -> (Progress, anyhow::Result<String>) {
        let mut pieces = self.files.read(start);
        let (mut fed_to, mut unread) = (start, None);
        let progress = intake.progress();
        while let Some(piece) = pieces.recv().await {
            let (lsn, bytes) = match piece {
                Ok(piece) => (piece.lsn, piece.bytes),
                Err(error) => {
                    unread = Some(error);
                    break;
                }
            };
            let len = bytes.len() as u64;
            if !intake.feed(lsn, bytes).await {
                break;
            }
            fed_to = lsn + len;
            let Progress { records, last_record } = *progress.borrow();
            self.bar.inc(len);
            self.bar.set_message(format!("{records} records, LSN {last_record}"));
        }
        let (progress, ended) = intake.finish().await;
        let ended = match (ended, unread) {
            (Err(IntakeError::Wal(error)), _) => self.end(error),
            (Err(IntakeError::Ingest { lsn, source }), _) => {
                Err(source).with_context(|| format!("cannot ingest {}", self.place(lsn)))
            }
            (Err(error @ IntakeError::BrokeOff(_)), _) => Err(anyhow!(error)),
            (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(format!("no segment file follows LSN {fed_to}")),
        };
        (progress, ended)
    }

    /// Distinguishes the end of the WAL from damage.
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
        match self.files.path(lsn) {
            Some(path) => format!("{path} offset {}", lsn.segment_offset(self.segment_size.into())),
            None => format!("LSN {lsn}"),
        }
    }
}
