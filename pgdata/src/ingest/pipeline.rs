//! WAL intake as a pipeline: one task assembles bytes into records and checks them, the next one turns the records
//! into values. The queues between the stages are short, so the producer waits while the store is busy.

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use utils::lsn::Lsn;
use wal_decoder::stream::{RecordBatch, WalError, WalStreamDecoder};

use super::{IngestError, WalIngest};
use crate::store::PageStore;
use metrics::{self, IngestStage, METRICS};

/// Maximum number of pieces waiting to be decoded.
const PIECES_MAX: usize = 8;
/// Maximum number of record batches waiting to be ingested.
const BATCHES_MAX: usize = 8;
/// Larger pieces are decoded in parts of this many bytes, so that the next stage can start early.
const PART_BYTES: usize = 256 << 10;

/// Consecutive bytes of WAL.
#[derive(Clone, Debug)]
pub struct WalPiece {
    /// LSN of the first byte.
    pub start: Lsn,
    /// The bytes.
    pub bytes: Bytes,
}

/// Progress of the intake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Records taken in.
    pub records: u64,
    /// End of the last record, or where the intake began.
    pub last_record: Lsn,
}

/// Why the intake ended prematurely.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    /// The bytes are not WAL, or the WAL ends in them. All records before that are in the store.
    #[error(transparent)]
    Wal(#[from] WalError),
    /// A record could not be ingested. Some of the records before it may not be in the store.
    #[error("{source}")]
    Ingest {
        /// Start of the record.
        lsn: Lsn,
        /// What happened.
        source: IngestError,
    },
    /// A stage was cancelled, or has a bug.
    #[error("WAL intake broke off: {0}")]
    BrokeOff(String),
}

/// A running intake. If it is dropped, what was fed is still ingested.
#[derive(Debug)]
pub struct WalIntake {
    pieces: mpsc::Sender<WalPiece>,
    progress: watch::Receiver<Progress>,
    decoding: JoinHandle<Result<(), WalError>>,
    ingesting: JoinHandle<Result<(), IntakeError>>,
}

impl WalIntake {
    /// Starts the stages. `decoder` and `ingest` must be at the same record.
    pub fn start<S: PageStore + 'static>(decoder: WalStreamDecoder, ingest: WalIngest<S>) -> Self {
        let (pieces, fed) = mpsc::channel(PIECES_MAX);
        let (batches, decoded) = mpsc::channel(BATCHES_MAX);
        let (done, progress) = watch::channel(Progress { records: 0, last_record: ingest.last_record() });
        Self {
            pieces,
            progress,
            decoding: env::spawn::task("WAL decoding", decode_all(decoder, fed, batches)),
            ingesting: env::spawn::task("WAL ingest", ingest_all(ingest, decoded, done)),
        }
    }

    /// Passes on the bytes that follow those fed before; waits for room in the queue. False if the intake has ended:
    /// [`finish`](Self::finish) returns the reason.
    pub async fn feed(&self, start: Lsn, bytes: Bytes) -> bool {
        self.pieces.send(WalPiece { start, bytes }).await.is_ok()
    }

    /// The input queue, for producers that want to wait for room before they have a piece. The intake ends only when
    /// all clones are dropped, too.
    pub fn pieces(&self) -> &mpsc::Sender<WalPiece> {
        &self.pieces
    }

    /// Subscribes to the progress. The channel closes when the intake ends.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// Waits until the intake ends by itself.
    pub async fn ended(&self) {
        self.pieces.closed().await;
    }

    /// Ingests what was fed, and returns how far that went and whether anything ended it early.
    pub async fn finish(self) -> (Progress, Result<(), IntakeError>) {
        let Self { pieces, progress, decoding, ingesting } = self;
        drop(pieces);
        let broke_off = |error: tokio::task::JoinError| Err(IntakeError::BrokeOff(error.to_string()));
        let decoded = decoding.await.map_or_else(broke_off, |ended| ended.map_err(IntakeError::from));
        let ingested = ingesting.await.unwrap_or_else(broke_off);
        let last = *progress.borrow();
        (last, ingested.and(decoded))
    }
}

async fn decode_all(
    mut decoder: WalStreamDecoder,
    mut pieces: mpsc::Receiver<WalPiece>,
    batches: mpsc::Sender<RecordBatch>,
) -> Result<(), WalError> {
    let mut watch = metrics::ingest_stopwatch().at(IngestStage::WaitForWal);
    while let Some(WalPiece { mut start, mut bytes }) = pieces.recv().await {
        while !bytes.is_empty() {
            watch.enter(IngestStage::Decode);
            let part = bytes.split_to(bytes.len().min(PART_BYTES));
            let len = part.len() as u64;
            METRICS.wal_ingest_bytes_received.inc_by(len);
            let mut batch = RecordBatch::default();
            let decoded = decoder.feed_at(start, part).and_then(|()| decoder.take_records(&mut batch));
            watch.enter(IngestStage::WaitForIngest);
            if !batch.is_empty() && batches.send(batch).await.is_err() {
                // The next stage has failed, and reports why.
                return Ok(());
            }
            decoded?;
            start += len;
        }
        watch.enter(IngestStage::WaitForWal);
    }
    Ok(())
}

/// Commits whenever no records are waiting.
async fn ingest_all<S: PageStore>(
    mut ingest: WalIngest<S>,
    mut batches: mpsc::Receiver<RecordBatch>,
    progress: watch::Sender<Progress>,
) -> Result<(), IntakeError> {
    ingest.watch.enter(IngestStage::WaitForRecords);
    while let Some(batch) = batches.recv().await {
        let mut ingested = ingest.ingest_many(&batch).await;
        if ingested.is_ok() && batches.is_empty() {
            ingested = ingest.commit().await;
        }
        ingested.map_err(|source| IntakeError::Ingest { lsn: ingest.current_record(), source })?;
        METRICS.wal_ingest_records_received.inc_by(batch.len() as u64);
        progress.send_modify(|progress| {
            progress.records += batch.len() as u64;
            progress.last_record = ingest.last_record();
        });
        ingest.watch.enter(IngestStage::WaitForRecords);
    }
    ingest.commit().await.map_err(|source| IntakeError::Ingest { lsn: ingest.current_record(), source })
}
