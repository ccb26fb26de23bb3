//! Compares redo with Postgres itself.
//!
//! A server with `wal_consistency_checking = all` adds to each record, for each block that it changes, an image of
//! the page after the change. Here [`redo`] replays every record on the page as it was before, and the result must
//! equal the image, under the masks with which Postgres itself compares them. Pages without such images (visibility
//! maps, transaction status, commit timestamps, multixacts) are compared at the end with the stopped server's files.
//!
//! Needs no timeline: pages before the first record come from a copy of the data directory, later ones are kept in
//! memory.

mod counts;
mod damage;
mod files;
mod final_counts;
mod pages;
mod replay;
mod report;
mod slru;

use anyhow::{Context, bail};
use camino::Utf8PathBuf;
use postgres_formats::control_file::{ClusterState, ControlFile};
use postgres_formats::version::PgVersion;
use utils::lsn::Lsn;
use wal_decoder::stream::{EndReason, WalError, WalStart, WalStreamConfig, WalStreamDecoder};

use datadir::wal_files::WalFiles;
use files::DataFiles;
use replay::{Replay, Settings};
pub use report::Report;

/// The input of a verification.
#[derive(Clone, Debug)]
pub struct Input {
    /// Data directory of the stopped server before the first record. Must be a copy.
    pub base: Utf8PathBuf,
    /// Directory with the WAL segment files written since.
    pub wal: Utf8PathBuf,
    /// Data directory of the stopped server after the last record; all pages are compared with it at the end.
    pub last: Option<Utf8PathBuf>,
    /// Also replay damaged copies of every `damage_every`-th record: they may fail, but must leave the page
    /// unchanged.
    pub damage_every: Option<u64>,
}

/// Receives the progress of a run, in bytes of WAL.
pub trait Progress {
    /// Reports the total.
    fn begin(&mut self, total: u64);
    /// Reports that `bytes` more have been processed.
    fn advance(&mut self, bytes: u64);
}

/// Replays all records and compares the results.
///
/// # Errors
/// If something cannot be read, or the WAL does not match the base. Differences are not an error: the report lists
/// them.
pub async fn verify(input: &Input, progress: &mut impl Progress) -> anyhow::Result<Report> {
    let control = read_control(&input.base)?;
    let base = DataFiles::new(input.base.clone(), control.version);
    let mut replay = Replay::new(Settings::of(&control), base, input.damage_every);
    let end = replay_all(&control, input, &mut replay, progress).await?;
    let files = match &input.last {
        Some(last) => Some(compare_files(&replay, last, end)?),
        None => None,
    };
    Ok(Report::new(control.version, end, replay, files))
}

fn read_control(data: &Utf8PathBuf) -> anyhow::Result<ControlFile> {
    let path = data.join("global/pg_control");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {path}"))?;
    let control = ControlFile::decode(&bytes).with_context(|| format!("{path} cannot be used"))?;
    if control.state() != ClusterState::Shutdowned {
        bail!("{data}: the server was not cleanly shut down (state {:?})", control.state());
    }
    Ok(control)
}

/// Replays from the base's last checkpoint to the end of the WAL. Returns the end.
async fn replay_all(
    control: &ControlFile,
    input: &Input,
    replay: &mut Replay,
    progress: &mut impl Progress,
) -> anyhow::Result<Lsn> {
    let (segment_size, start) = (control.fields.wal_segment_size, control.fields.checkpoint);
    let files = WalFiles::open(&input.wal, segment_size)?;
    let config = WalStreamConfig {
        version: control.version,
        segment_size,
        system_identifier: Some(control.fields.system_identifier),
        feed_from: start.segment_start(segment_size.into()),
        start: WalStart::Record { lsn: start, previous: None },
    };
    let mut decoder = WalStreamDecoder::new(&config)?;
    let mut pieces = files.read(start);
    progress.begin(files.bytes_from(start));
    let mut end = start;
    while let Some(piece) = pieces.recv().await {
        let piece = piece?;
        progress.advance(piece.bytes.len() as u64);
        decoder.feed(piece.bytes);
        loop {
            match decoder.next() {
                Ok(Some(record)) => {
                    replay.record(&record).with_context(|| format!("record at {}", record.start))?;
                    end = record.end;
                }
                Ok(None) => break,
                Err(error) => return check_end(error, &files, control.version).map(|()| end),
            }
        }
    }
    Ok(end)
}

/// Distinguishes the end of the WAL from damage.
fn check_end(error: WalError, files: &WalFiles, version: PgVersion) -> anyhow::Result<()> {
    let is_end = matches!(
        error,
        WalError::EndOfWal { reason: EndReason::ZeroLength | EndReason::ZeroPage | EndReason::StalePage(_), .. }
    );
    let place = error.place().map_or_else(|| error.lsn(), |place| place.lsn);
    if !is_end || files.continues_after(place, version)?.is_some() {
        return Err(error).with_context(|| format!("damaged or foreign WAL at {place}"));
    }
    Ok(())
}

/// Compares all pages with the files of the server, which must have stopped where the WAL ends.
fn compare_files(replay: &Replay, data: &Utf8PathBuf, end: Lsn) -> anyhow::Result<report::Files> {
    let control = read_control(data)?;
    let checkpoint = control.fields.checkpoint;
    if checkpoint >= end || end.0 - checkpoint.0 > CHECKPOINT_SPACE {
        bail!("{data} is of checkpoint {checkpoint}, but the WAL ends at {end}");
    }
    let mut files = DataFiles::new(data.clone(), control.version);
    Ok(report::Files {
        relations: replay.pages.compare_files(&mut files)?,
        slru: replay.slru.compare_files(&mut files)?,
    })
}

/// Upper bound of the space taken by a checkpoint record and a page header before its end.
const CHECKPOINT_SPACE: u64 = 256;
