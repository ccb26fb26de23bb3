//! Reads and writes that may have to fetch blocks.
//!
//! A block is fetched once, however many requests wait for it: a [`Flight`] covers it from the request until it is in
//! the overlay or the source has refused. Storing it in the overlay is off the request's path. A sequential scan is
//! prefetched in pieces of 1 MiB; a point read fetches what it asks for, and what an index says comes next.

mod outage;
#[cfg(test)]
mod tests;

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use rustix::io::Errno;
use tokio::sync::{Semaphore, mpsc, watch};

use crate::BLOCK;
use crate::index_scan::IndexScans;
use crate::overlay::file::{FetchFailed, FileNode, Flight, Origin, Outcome, State};
use crate::overlay::{Change, Overlay};
use crate::overlay::{Fetched, blocks};
use crate::readahead::{AHEAD_MIB, PIECE};
use crate::source::{PageSource, SourceError};
use outage::Outage;

/// Limits on requests to the source.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Maximum number of concurrent requests.
    pub in_flight: usize,
    /// How many MiB of a table are fetched ahead of a scan; 0: only what is read.
    pub ahead_mib: u32,
    /// A request is repeated after this time.
    pub attempt: Duration,
    /// A read fails after this time without an answer. Postgres does not cope well: recovery stops, a checkpoint
    /// panics.
    pub give_up: Duration,
    /// A write to a full disk fails after this time.
    pub disk_full: Duration,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            in_flight: 64,
            ahead_mib: AHEAD_MIB,
            attempt: Duration::from_secs(30),
            give_up: Duration::from_secs(24 * 3600),
            disk_full: Duration::from_secs(300),
        }
    }
}

/// Maximum number of fetched bytes that are not in the overlay yet; beyond it nothing is prefetched.
const AHEAD_MAX: usize = 64 << 20;

/// Maximum number of completed flights that wait to be stored in the overlay.
const LANDED_MAX: usize = 64;

const DISK_FULL_PAUSE: Duration = Duration::from_millis(200);

/// Counters of requests to the source.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) requests: AtomicU64,
    pub(crate) blocks: AtomicU64,
}

/// The overlay, and a source for the blocks that it lacks.
pub(crate) struct Volume<S> {
    pub(crate) overlay: Overlay,
    pub(crate) counts: Counts,
    source: S,
    policy: Policy,
    permits: Semaphore,
    landed: mpsc::Sender<Landed>,
    under_way: AtomicUsize,
    outage: Outage,
    index_scans: IndexScans,
}

/// Fetched blocks on their way to the overlay.
struct Landed {
    file: Arc<FileNode>,
    first: u32,
    data: Bytes,
}

/// A read that waits for blocks.
pub(crate) struct Pending {
    waits: Vec<Wait>,
    offset: u64,
    size: usize,
}

/// One fetch that a request waits for.
struct Wait {
    first: u32,
    outcome: watch::Receiver<Outcome>,
}

/// A fetch to be started.
struct Start {
    blocks: Range<u32>,
    outcome: watch::Sender<Outcome>,
}

impl<S: PageSource> Volume<S> {
    /// Must be called within a runtime; a task there stores fetched blocks in the overlay.
    pub(crate) fn new(overlay: Overlay, source: S, policy: Policy) -> Arc<Self> {
        let (landed, arrivals) = mpsc::channel(LANDED_MAX);
        let volume = Arc::new(Self {
            overlay,
            counts: Counts::default(),
            source,
            policy,
            permits: Semaphore::new(policy.in_flight),
            landed,
            under_way: AtomicUsize::new(0),
            outage: Outage::default(),
            index_scans: IndexScans::default(),
        });
        let weak = Arc::downgrade(&volume);
        env::spawn::vital_blocking("arrivals", move || {
            let mut arrivals = arrivals;
            while let Some(landed) = arrivals.blocking_recv() {
                let Some(volume) = weak.upgrade() else { break };
                volume.take_in(&landed);
            }
        });
        volume
    }

    /// Begins to read up to `size` bytes at `offset`, fewer at the end of the file. Does not wait.
    pub(crate) fn begin_read(
        self: &Arc<Self>,
        file: &Arc<FileNode>,
        offset: u64,
        size: usize,
    ) -> io::Result<Result<Vec<u8>, Pending>> {
        let wanted = blocks(offset, size)?;
        let waits = self.fetch(file, wanted.clone(), true)?;
        if wanted.len() == 1 {
            self.fetch_next(file, wanted.start, !waits.is_empty())?;
        }
        if waits.is_empty()
            && let Some(data) = self.overlay.read_here(file, offset, size)?
        {
            self.note_page(file, offset, &data);
            return Ok(Ok(data));
        }
        Ok(Err(Pending { waits, offset, size }))
    }

    /// Waits for the missing blocks of a read.
    pub(crate) async fn finish_read(&self, file: &Arc<FileNode>, pending: Pending) -> io::Result<Vec<u8>> {
        let fetched = arrived(pending.waits).await?;
        let data = self.overlay.assemble(file, pending.offset, pending.size, &fetched)?;
        self.note_page(file, pending.offset, &data);
        Ok(data)
    }

    /// What was read may lead to what is read next.
    fn note_page(&self, file: &FileNode, offset: u64, data: &[u8]) {
        let at = offset / BLOCK as u64;
        if let Some(block) = file.origin.and_then(|origin| u32::try_from(at + u64::from(origin.first)).ok()) {
            self.index_scans.note_page(file.id, block, data);
        }
    }

    /// Fetches what an index scan that has come to `block` is about to read.
    fn fetch_next(self: &Arc<Self>, file: &Arc<FileNode>, block: u32, is_missing: bool) -> io::Result<()> {
        let Some(origin) = file.origin else { return Ok(()) };
        let blocks = self.index_scans.next(file.id, origin.first + block, is_missing);
        for next in blocks.iter().filter_map(|next| next.checked_sub(origin.first)) {
            // Nobody waits for it.
            self.start(file, origin, &(next..next), |_| next + 1)?;
        }
        Ok(())
    }

    /// Writes all of `data` at `offset`. Waits for free space if the disk is full.
    pub(crate) async fn write(self: &Arc<Self>, file: &Arc<FileNode>, offset: u64, data: &[u8]) -> io::Result<()> {
        let since = env::clock::now();
        loop {
            let outcome = match self.overlay.write(file, offset, data) {
                Ok(Change::Done) => return Ok(()),
                Ok(Change::Needs(needed)) => self.bring(file, &needed).await,
                Err(error) => Err(error),
            };
            match outcome {
                Err(error) if is_full(&error) && env::clock::now() - since < self.policy.disk_full => {
                    self.outage.disk_full(&error);
                    env::clock::sleep(DISK_FULL_PAUSE).await;
                }
                outcome => outcome?,
            }
        }
    }

    /// Truncates or extends the file to `size` bytes.
    pub(crate) async fn truncate(self: &Arc<Self>, file: &Arc<FileNode>, size: u64) -> io::Result<()> {
        while let Change::Needs(needed) = self.overlay.truncate(file, size)? {
            self.bring(file, &needed).await?;
        }
        Ok(())
    }

    /// Whether any fetched bytes are still on their way.
    #[cfg(test)]
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way.load(Ordering::SeqCst) > 0
    }

    /// Fetches `needed` into the overlay.
    async fn bring(self: &Arc<Self>, file: &Arc<FileNode>, needed: &[u32]) -> io::Result<()> {
        for block in needed {
            for (first, data) in arrived(self.fetch(file, *block..block + 1, false)?).await? {
                self.overlay.take_in(file, first, &data)?;
            }
        }
        Ok(())
    }

    /// Ensures that the remote ones among `blocks` are being fetched; returns what to wait for.
    fn fetch(self: &Arc<Self>, file: &Arc<FileNode>, blocks: Range<u32>, is_read: bool) -> io::Result<Vec<Wait>> {
        let Some(origin) = file.origin else { return Ok(Vec::new()) };
        let ahead =
            |state: &mut State| if is_read { state.scan.read(&blocks, self.policy.ahead_mib) } else { blocks.end };
        self.start(file, origin, &blocks, ahead)
    }

    /// As [`Volume::fetch`], for `blocks` and those up to what `ahead` says.
    fn start(
        self: &Arc<Self>,
        file: &Arc<FileNode>,
        origin: Origin,
        blocks: &Range<u32>,
        ahead: impl FnOnce(&mut State) -> u32,
    ) -> io::Result<Vec<Wait>> {
        let (waits, starts) = self.overlay.with_state(file, false, |state| {
            let ahead = ahead(state);
            let is_busy = self.under_way.load(Ordering::Relaxed) > AHEAD_MAX;
            Ok(claim(state, blocks, if is_busy { blocks.end } else { ahead }))
        })?;
        for start in starts {
            self.under_way.fetch_add(start.blocks.len() * BLOCK, Ordering::Relaxed);
            env::spawn::vital("fetch", Arc::clone(self).fly(Arc::clone(file), origin, start));
        }
        Ok(waits)
    }

    async fn fly(self: Arc<Self>, file: Arc<FileNode>, origin: Origin, start: Start) {
        let first = start.blocks.start;
        let size = start.blocks.len() * BLOCK;
        let permit = self.permits.acquire().await;
        let answer = self.ask(origin, &start.blocks).await;
        drop(permit);
        match answer {
            Ok(data) => {
                start.outcome.send_replace(Some(Ok(data.clone())));
                if self.landed.send(Landed { file, first, data }).await.is_err() {
                    self.under_way.fetch_sub(size, Ordering::Relaxed);
                }
            }
            Err(FetchFailed) => {
                self.overlay.let_go(&file, first);
                self.under_way.fetch_sub(size, Ordering::Relaxed);
                start.outcome.send_replace(Some(Err(FetchFailed)));
            }
        }
    }

    /// Asks the source until it answers or refuses for good.
    async fn ask(&self, origin: Origin, blocks: &Range<u32>) -> Result<Bytes, FetchFailed> {
        let since = env::clock::now();
        let count = blocks.end - blocks.start;
        let mut pause = Duration::from_millis(10);
        loop {
            let mut out = vec![0; count as usize * BLOCK];
            let request = self.source.read_blocks(origin.rel, origin.first + blocks.start, count, &mut out);
            self.counts.requests.fetch_add(1, Ordering::Relaxed);
            let reason = match env::clock::timeout(self.policy.attempt, request).await {
                Ok(Ok(())) => {
                    self.counts.blocks.fetch_add(count.into(), Ordering::Relaxed);
                    self.outage.over();
                    return Ok(out.into());
                }
                Ok(Err(SourceError::Retry(reason))) => reason,
                Ok(Err(error @ (SourceError::Gone(_) | SourceError::Failed(_)))) => {
                    tracing::error!(?origin, ?blocks, "a read fails: {error}");
                    return Err(FetchFailed);
                }
                Err(_) => format!("no answer within {:?}", self.policy.attempt),
            };
            self.outage.goes_on(&reason);
            if env::clock::now() - since > self.policy.give_up {
                tracing::error!(?origin, ?blocks, "a read fails after {:?}: {reason}", self.policy.give_up);
                return Err(FetchFailed);
            }
            env::clock::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }

    fn take_in(&self, landed: &Landed) {
        // A copy of data that can be fetched again must not take space from data that cannot.
        let taken = if self.overlay.has_room_to_keep() {
            self.overlay.take_in(&landed.file, landed.first, &landed.data)
        } else {
            self.overlay.let_go(&landed.file, landed.first);
            Err(io::Error::new(io::ErrorKind::StorageFull, "what is left of the disk is for what Postgres writes"))
        };
        if let Err(error) = taken {
            self.outage.not_kept(&error);
        }
        self.under_way.fetch_sub(landed.data.len(), Ordering::Relaxed);
    }
}

/// Finds or starts the flights that cover `blocks`; prefetches more, up to `until`.
fn claim(state: &mut State, blocks: &Range<u32>, until: u32) -> (Vec<Wait>, Vec<Start>) {
    let (mut waits, mut starts) = (Vec::new(), Vec::new());
    let end = until.max(blocks.end).min(state.limit);
    let mut at = blocks.start;
    while at < end {
        if !state.is_remote(at) {
            at += 1;
            continue;
        }
        let flight = state.flight(at).map(|flight| (flight.until, flight.outcome.clone()));
        let (next, outcome) = flight.unwrap_or_else(|| {
            // What somebody waits for does not wait for what is only prefetched.
            let last = if at < blocks.end { end.min(blocks.end) } else { end };
            let stop = last.min((at + 1).next_multiple_of(PIECE));
            let free = |block: &u32| state.is_remote(*block) && state.flight(*block).is_none();
            let next = (at..stop).find(|block| !free(block)).unwrap_or(stop);
            let (sender, outcome) = watch::channel(None);
            starts.push(Start { blocks: at..next, outcome: sender });
            state.flights.insert(at, Flight { until: next, outcome: outcome.clone() });
            (next, outcome)
        });
        if at < blocks.end {
            let first = state.flights.range(..=at).next_back().map_or(at, |(first, _)| *first);
            waits.push(Wait { first, outcome });
        }
        at = next;
    }
    (waits, starts)
}

/// Waits for all of `waits`.
async fn arrived(waits: Vec<Wait>) -> io::Result<Vec<Fetched>> {
    let mut fetched = Vec::with_capacity(waits.len());
    for mut wait in waits {
        let outcome = wait.outcome.wait_for(Option::is_some).await.map_err(io::Error::other)?.clone();
        match outcome {
            Some(Ok(data)) => fetched.push((wait.first, data)),
            _ => return Err(Errno::IO.into()),
        }
    }
    Ok(fetched)
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
