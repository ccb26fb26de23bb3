//! What there is of a journal when a process starts, and what of it goes.

use std::collections::BTreeSet;
use std::sync::Arc;

use camino::Utf8Path;
use errors::StorageError;
use tokio::sync::oneshot;
use utils::lsn::Lsn;
use virtual_file::fs::{list_dir, unlink};

use crate::batch::{Id, Kind};
use crate::replay::Replay;
use crate::segment::{self, Found, Scanned};
use crate::state::{Inner, Need, Pending, Segment, State};

/// Files that are kept to be used again.
const SPARES_MAX: usize = 2;

/// What comes next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) segment: u64,
    pub(crate) batch: u64,
}

/// Reads what an earlier process has left.
pub(crate) async fn recover(dir: &Utf8Path) -> Result<(State, Next), StorageError> {
    let names = list_dir(dir).await?;
    segment::remove_spares(dir, &names).await?;
    let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment::number_of(name)).collect();
    numbers.sort_unstable();
    let (mut state, mut next) = (State::default(), Next { segment: 1, batch: 1 });
    let mut first = true;
    for number in numbers {
        next.segment = number + 1;
        let batches = match segment::scan(dir, number).await {
            Ok(Scanned::Segment(batches)) => batches,
            Ok(Scanned::Spare) => {
                unlink(&segment::path(dir, number)).await?;
                continue;
            }
            // The file goes when it is the oldest one.
            Err(error @ StorageError::Corrupt { .. }) => {
                state.note_damage(&error.to_string());
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        state.segments.push_back(Segment { number, ids: BTreeSet::new() });
        for batch in batches {
            if batch.number != next.batch && !first {
                let (path, first, offset) = (segment::path(dir, number), next.batch, batch.offset);
                state.note_damage(&format!(
                    "{path}: batches from {first} to {} before offset {offset}",
                    batch.number - 1
                ));
            }
            (first, next.batch) = (false, batch.number + 1);
            state.note(number, &batch);
        }
    }
    Ok((state, next))
}

impl State {
    fn note_damage(&mut self, what: &str) {
        tracing::error!("the journal is damaged: {what}. WAL that was there has to come again from whoever has it");
        metrics::METRICS.journal_damages.inc();
        self.stats.damages += 1;
    }

    /// Notes what a batch of the last segment has.
    pub(crate) fn note(&mut self, segment: u64, batch: &Found) {
        for frame in &batch.frames {
            self.index.note(frame, segment, batch.offset);
            if let Some(last) = self.segments.back_mut().filter(|_| frame.kind == Kind::Wal) {
                last.ids.insert(frame.id);
            }
            if let Some(synced) = self.synced.get(&frame.id) {
                synced.send_replace(frame.lsn + frame.wal.len() as u64);
            }
        }
    }

    /// What becomes of the oldest segment.
    fn oldest(&self, need: &impl Fn(&Id) -> Need, is_full: bool) -> Fate {
        // The last one is being written.
        let Some(oldest) = self.segments.front().filter(|_| self.segments.len() > 1) else {
            return Fate::Stays(vec![]);
        };
        let (mut pins, mut carried, mut is_early) = (Vec::new(), Vec::new(), false);
        for id in &oldest.ids {
            let Some(end) = self.index.end_in(id, oldest.number) else { continue };
            let need = match need(id) {
                Need::Rather { needed, wanted } if is_full => {
                    is_early |= end > wanted.page_start();
                    Need::From(needed)
                }
                Need::Rather { wanted, .. } => Need::From(wanted),
                need => need,
            };
            match need {
                Need::Nothing | Need::Rather { .. } => {}
                Need::Unknown if is_full => tracing::warn!(
                    tenant = %id.tenant, timeline = %id.timeline,
                    "the journal is full, and gives up WAL of a timeline that is not open"
                ),
                Need::From(from) if end <= from.page_start() => {}
                Need::From(from) if self.index.last(id).is_some_and(|last| last.end() <= from) => carried.push(*id),
                Need::From(_) | Need::Unknown => pins.push(*id),
            }
        }
        match (pins.is_empty(), carried.is_empty()) {
            (false, _) => Fate::Stays(if is_full { pins } else { vec![] }),
            (true, false) => Fate::MustBeCarried(carried),
            (true, true) => Fate::Goes { number: oldest.number, is_early },
        }
    }
}

/// What becomes of a segment.
enum Fate {
    Goes {
        number: u64,
        /// Others lack some of it.
        is_early: bool,
    },
    /// Layers have all of its WAL, but of these timelines what comes next goes on in the middle of a page, which can
    /// only be read from its beginning on.
    MustBeCarried(Vec<Id>),
    /// The timelines to be flushed, so that it can go.
    Stays(Vec<Id>),
}

/// See `Journal::trim`.
pub(crate) async fn trim(inner: &Arc<Inner>, need: impl Fn(&Id) -> Need) -> Result<Vec<Id>, StorageError> {
    loop {
        let fate = {
            let mut state = inner.state.lock();
            let is_full = state.bytes(&inner.options) > inner.options.bytes;
            let fate = state.oldest(&need, is_full);
            if let Fate::Goes { number, is_early } = fate {
                state.stats.gone_early += u64::from(is_early);
                state.segments.pop_front();
                state.index.forget_before(number + 1);
                inner.room.notify_waiters();
            }
            fate
        };
        match fate {
            Fate::Stays(pins) => return Ok(pins),
            Fate::Goes { number, .. } => set_aside(inner, number).await?,
            Fate::MustBeCarried(ids) => {
                for id in ids {
                    if !carry(inner, id).await? {
                        return Ok(Vec::new());
                    }
                }
            }
        }
    }
}

/// Keeps the file of a segment that is gone to be used again, unless there are enough.
async fn set_aside(inner: &Inner, number: u64) -> Result<(), StorageError> {
    let spare = segment::set_aside(&inner.dir, number).await?;
    {
        let mut state = inner.state.lock();
        if state.spares.len() < SPARES_MAX {
            state.spares.push(spare);
            return Ok(());
        }
    }
    unlink(&spare).await
}

/// Journals the last page of a timeline once more. False if more WAL comes meanwhile, so that it need not be.
async fn carry(inner: &Arc<Inner>, id: Id) -> Result<bool, StorageError> {
    let Some(last) = inner.state.lock().index.last(&id).copied() else { return Ok(true) };
    let start = Lsn(last.end().0.saturating_sub(1)).page_start();
    let mut replay = Replay::new(inner.dir.clone(), inner.state.lock().index.from(&id, start));
    let mut page = Vec::new();
    while let Some((_, bytes)) = replay.next().await? {
        page.extend_from_slice(&bytes);
    }
    let done = {
        let mut state = inner.state.lock();
        // What is not in the index yet would be void behind this.
        if state.has_more(&id) || state.index.last(&id) != Some(&last) {
            return Ok(false);
        }
        let (done, wait) = oneshot::channel();
        // What has no beginning cannot be read, and need not be kept.
        let kind = if page.is_empty() { Kind::Void } else { Kind::Wal };
        state.add(Pending { id, kind, lsn: start, wal: page.into(), done: Some(done) });
        wait
    };
    inner.work.notify_one();
    inner.until(done).await.map(|()| true)
}
