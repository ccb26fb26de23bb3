//! The task that writes the journal: whatever has come in while the last batch was made durable is the next one.

use std::sync::Arc;
use std::time::Duration;

use errors::StorageError;
use metrics::METRICS;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use virtual_file::{AlignedBuf, VirtualFile};

use crate::batch::{BLOCK, FRAME, Frame, HEADER, SegmentHeader, put_frame, seal};
use crate::recovery::Next;
use crate::segment::{self, Found};
use crate::state::{Inner, Pending, Segment};

/// Bytes of WAL in a batch, at most: more would make those wait who came first.
const BATCH_MAX: usize = 1 << 20;
/// Pause after a failure.
const PAUSE: Duration = Duration::from_secs(1);

/// The segment that is being written.
struct Current {
    header: SegmentHeader,
    file: VirtualFile,
    /// Where the next batch begins.
    offset: u64,
}

struct Writer {
    inner: Arc<Inner>,
    next: Next,
    current: Option<Current>,
    /// The next segment, on its way.
    ahead: Option<Ahead>,
    /// What batches are encoded into, one after the other.
    buffer: Option<AlignedBuf>,
    /// Why nothing can be written, if so.
    trouble: String,
}

/// A segment that is being begun.
struct Ahead {
    beginning: JoinHandle<Result<Current, StorageError>>,
    /// Cancelled when it is needed.
    hurry: CancellationToken,
}

/// What is to be written at once.
struct Batch {
    taken: Vec<Pending>,
    /// Bytes without padding.
    len: usize,
}

/// Writes until the journal ends, and nothing is pending.
pub(crate) async fn run(inner: Arc<Inner>, next: Next) {
    let mut writer = Writer { inner, next, current: None, ahead: None, buffer: None, trouble: String::new() };
    loop {
        let work = Arc::clone(&writer.inner);
        let Some(batch) = writer.take() else {
            if work.cancel.is_cancelled() {
                break;
            }
            tokio::select! {
                () = work.work.notified() => {}
                () = work.cancel.cancelled() => {}
            }
            continue;
        };
        writer.write(batch).await;
    }
    writer.inner.ended.cancel();
    if let Some(ahead) = writer.ahead.take() {
        // The next start finds a segment without batches, or a file that it removes.
        let _ = ahead.needed().await;
    }
}

impl Ahead {
    /// Waits for it.
    async fn needed(self) -> Result<Current, StorageError> {
        self.hurry.cancel();
        self.beginning.await.map_err(|error| StorageError::Internal(error.to_string()))?
    }
}

/// Of a segment that is needed at once.
fn hurrying() -> CancellationToken {
    let hurry = CancellationToken::new();
    hurry.cancel();
    hurry
}

impl Batch {
    /// Bytes that it takes of its segment.
    fn padded(&self) -> usize {
        self.len.next_multiple_of(BLOCK)
    }

    /// Makes `bytes` what is written to a segment. Returns its frames.
    fn encode(&self, bytes: &mut AlignedBuf, segment: &SegmentHeader, number: u64) -> Vec<Frame> {
        bytes.set_len(0);
        bytes.extend_with_zeros(HEADER);
        let mut frames = Vec::with_capacity(self.taken.len());
        for Pending { id, kind, lsn, wal, .. } in &self.taken {
            let start = bytes.len() + FRAME;
            put_frame(|part| bytes.extend_from_slice(part), id, *kind, *lsn, wal);
            frames.push(Frame { id: *id, kind: *kind, lsn: *lsn, wal: start..bytes.len() });
        }
        seal(bytes, segment, number);
        bytes.extend_with_zeros(self.padded() - self.len);
        frames
    }
}

impl Writer {
    /// Bytes of a batch without its padding, at most.
    fn limit(&self) -> usize {
        BATCH_MAX.min(self.inner.options.segment_bytes as usize - BLOCK - HEADER - FRAME)
    }

    /// What is pending, as far as a batch holds it.
    fn take(&self) -> Option<Batch> {
        let limit = self.limit();
        let mut taken: Vec<Pending> = Vec::new();
        let (mut len, mut wal_bytes) = (HEADER, 0);
        {
            let mut state = self.inner.state.lock();
            while let Some(first) = state.pending.front_mut() {
                let Some(room) = limit.checked_sub(len + FRAME) else { break };
                if !taken.is_empty() && first.wal.len() > room {
                    break;
                }
                let part = if first.wal.len() > room {
                    let wal = first.wal.split_to(room);
                    let lsn = first.lsn;
                    first.lsn += wal.len() as u64;
                    Pending { id: first.id, kind: first.kind, lsn, wal, done: None }
                } else {
                    match state.pending.pop_front() {
                        Some(whole) => whole,
                        None => break,
                    }
                };
                (len, wal_bytes) = (len + FRAME + part.wal.len(), wal_bytes + part.wal.len());
                taken.push(part);
            }
            state.pending_bytes -= wal_bytes;
            state.writing.extend(taken.iter().map(|pending| pending.id));
        }
        if taken.is_empty() {
            return None;
        }
        self.inner.room.notify_waiters();
        Some(Batch { taken, len })
    }

    /// Makes a batch durable, however often it has to be tried, and tells those who wait.
    async fn write(&mut self, batch: Batch) {
        let found = loop {
            match self.try_write(&batch).await {
                Ok(found) => break found,
                Err(error) => self.fail(&error).await,
            }
            if self.inner.cancel.is_cancelled() {
                return;
            }
        };
        let Some(current) = &mut self.current else { return };
        let written = batch.padded() as u64;
        current.offset += written;
        self.next.batch += 1;
        let frames = found.frames.len() as u64;
        {
            let mut state = self.inner.state.lock();
            state.note(current.header.number, &found);
            state.writing.clear();
            state.stats.frames += frames;
            state.stats.syncs += 1;
        }
        self.trouble.clear();
        METRICS.journal_frames.inc_by(frames);
        METRICS.journal_syncs.inc();
        METRICS.journal_written_bytes.inc_by(written);
        for done in batch.taken.into_iter().filter_map(|pending| pending.done) {
            // Whoever does not wait any more need not know.
            let _ = done.send(());
        }
        self.look_ahead();
    }

    async fn try_write(&mut self, batch: &Batch) -> Result<Found, StorageError> {
        let has_room = |current: &Current| current.offset + batch.padded() as u64 <= u64::from(current.header.len);
        let current = match self.current.take().filter(has_room) {
            Some(current) => current,
            None => self.begin().await?,
        };
        let (limit, buffer) = (self.limit(), self.buffer.take());
        let current = self.current.insert(current);
        let offset = u32::try_from(current.offset);
        let offset = offset.map_err(|_| StorageError::Internal(format!("offset {} in a journal", current.offset)))?;
        let mut bytes = buffer.unwrap_or_else(|| AlignedBuf::with_capacity(limit));
        let frames = batch.encode(&mut bytes, &current.header, self.next.batch);
        let bytes = Arc::new(bytes);
        match fault::planted(fault::Bug::JournalBeforeSync) {
            true => current.file.write_part_at(current.offset, &bytes, bytes.len()).await?,
            false => current.file.write_durably_at(current.offset, &bytes).await?,
        }
        self.buffer = Arc::into_inner(bytes);
        Ok(Found { offset, number: self.next.batch, frames })
    }

    /// The next segment.
    async fn begin(&mut self) -> Result<Current, StorageError> {
        let next = match self.ahead.take() {
            Some(ahead) => ahead.needed().await,
            None => begin(Arc::clone(&self.inner), self.next.segment, hurrying()).await,
        }?;
        self.next.segment += 1;
        self.inner.state.lock().segments.push_back(Segment { number: next.header.number, ids: Default::default() });
        self.inner.grown.notify_waiters();
        Ok(next)
    }

    /// Has the next segment begun before it is needed: that changes metadata, whose syncs may have to wait for what
    /// others have written to the same file system.
    fn look_ahead(&mut self) {
        let is_half_full = |current: &Current| current.offset * 2 > u64::from(current.header.len);
        if self.ahead.is_none() && self.current.as_ref().is_some_and(is_half_full) {
            let hurry = CancellationToken::new();
            let beginning = begin(Arc::clone(&self.inner), self.next.segment, hurry.clone());
            let beginning = env::spawn::task("the journal's next segment", beginning);
            self.ahead = Some(Ahead { beginning, hurry });
        }
    }

    async fn fail(&mut self, error: &StorageError) {
        let reason = error.to_string();
        if self.trouble != reason {
            tracing::error!("the journal cannot be written, and is tried again: {reason}");
            self.trouble = reason;
        }
        env::clock::sleep(PAUSE).await;
    }
}

/// Begins a segment, in a file that was one before, or a new one.
async fn begin(inner: Arc<Inner>, number: u64, hurry: CancellationToken) -> Result<Current, StorageError> {
    let (dir, len) = (&inner.dir, inner.options.segment_bytes);
    let spare = inner.state.lock().spares.pop();
    let spare = match spare {
        Some(spare) => spare,
        None => segment::make_spare(dir, number, len, &hurry).await?,
    };
    let header = SegmentHeader { number, len, key: env::random::u64() };
    let file = segment::begin(dir, &spare, &header).await?;
    Ok(Current { header, file, offset: BLOCK as u64 })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use camino_tempfile::tempdir;
    use utils::id::{TenantId, TimelineId};
    use utils::lsn::Lsn;
    use utils::shard::TenantShardId;

    use crate::{Id, Journal, Options};

    fn id(number: u64) -> Id {
        let bytes = u128::from(number).to_le_bytes();
        Id { tenant: TenantShardId::unsharded(TenantId::from([1; 16])), timeline: TimelineId::from(bytes) }
    }

    #[tokio::test]
    async fn frames_without_wal_are_more_than_a_segment_holds() {
        let dir = tempdir().unwrap();
        let options = Options { segment_bytes: 16 << 10, bytes: 1 << 20, pending_bytes: 1 << 20 };
        let journal = Journal::open(dir.path(), options).await.unwrap();
        let lanes: Vec<_> = (0..1000).map(|number| journal.lane(id(number))).collect();
        lanes[999].append(Lsn(8), Bytes::from_static(b"of the last one"));
        let void = |lane: crate::Lane| tokio::spawn(async move { lane.void(Lsn(16)).await });
        for voided in lanes.into_iter().map(void).collect::<Vec<_>>() {
            voided.await.unwrap().unwrap();
        }
        assert!(journal.stats().syncs >= 3, "{:?}", journal.stats());
        journal.shutdown().await;
        let journal = Journal::open(dir.path(), options).await.unwrap();
        assert_eq!(journal.lane(id(999)).replay(Lsn(8)).end(), Some(Lsn(16)));
    }
}
