//! Where a timeline's WAL comes from: it remembers every record, what each key is as of each, and how much of it a
//! server has acknowledged, so that it would be discarded. Some write values, as they come out of a decoder; others are
//! a model of a Postgres, whose bytes a server receives as it receives those of a real one.

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use pageserver_api::key::{Key, slru_block_key, slru_dir_key, slru_segment_size_key};
use pageserver_api::reltag::SlruKind;
use pageserver_api::value::Value;
use parking_lot::Mutex;
use pgdata::directory::{SlruDir, encode, encode_size};
use simulated::model::{Change, Model, put_record};
use simulated::random::Random;
use tokio::sync::watch;
use utils::id::TimelineId;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::postgres::Postgres;

/// Pages of the commit log, which are all that there is in the model.
const COMMIT_LOG_PAGES: u32 = 6;

fn commit_log() -> impl Iterator<Item = Key> {
    (0..COMMIT_LOG_PAGES).map(|page| slru_block_key(SlruKind::Clog, 0, page))
}

/// The whole commit log as of `lsn`, if there is one yet.
pub fn segment(model: &Model, lsn: Lsn) -> Option<Bytes> {
    let pages: Vec<Bytes> = commit_log().map_while(|key| model.value(&key, lsn)).collect();
    (!pages.is_empty()).then(|| Bytes::from(pages.concat()))
}

/// A record as a server takes it in.
#[derive(Clone)]
pub struct Record {
    /// Its end.
    pub lsn: Lsn,
    /// The end of the one before.
    pub prev: Lsn,
    /// What it changes, in one part or, where it changes something twice, in several. None if a Postgres has written
    /// it.
    pub batches: Vec<SerializedValueBatch>,
    /// When it was written.
    pub written: Instant,
}

/// The source of one timeline's WAL. Cheap to clone.
#[derive(Clone)]
pub struct Origin {
    /// The timeline.
    pub id: TimelineId,
    /// Where its own history begins.
    pub begins: Lsn,
    /// Moments before, of its ancestors.
    inherited: Arc<Vec<Lsn>>,
    history: Arc<Mutex<History>>,
    end: watch::Sender<Lsn>,
}

struct History {
    records: Vec<Record>,
    model: Model,
    /// Writes it, if somebody does who writes bytes.
    postgres: Option<Postgres>,
    acknowledged: Lsn,
    /// No server has ever had more.
    sent: Lsn,
    next: Lsn,
    last: Lsn,
}

impl History {
    /// The first record makes the commit log, with all of its pages.
    fn found_commit_log(&mut self) {
        let dir = slru_dir_key(SlruKind::Clog);
        if self.model.exists(&dir) {
            return;
        }
        let (lsn, prev, mut batch) = (self.next, self.last, SerializedValueBatch::default());
        let size = slru_segment_size_key(SlruKind::Clog, 0);
        let pages = commit_log().map(|key| (key, Bytes::from(vec![0; 8192])));
        let sizes = [(dir, encode(&SlruDir::from([0]))), (size, encode_size(COMMIT_LOG_PAGES))];
        for (key, value) in sizes.into_iter().chain(pages) {
            let value = Value::Image(value);
            batch.put_key(&key, lsn, &value).unwrap_or_else(|error| panic!("{key} at {lsn}: {error}"));
            self.model.put(key, lsn, value);
        }
        self.records.push(Record { lsn, prev, batches: vec![batch], written: env::clock::now() });
        self.last = lsn;
        self.next += 8;
    }

    /// Writes a record of values.
    fn write_values(&mut self, random: &mut Random) {
        let changes: Vec<Change> =
            (0..1 + random.below(3)).map(|_| (random.below(12) as usize, random.next() as u32)).collect();
        let (lsn, prev, mut batch) = (self.next, self.last, SerializedValueBatch::default());
        put_record(&mut self.model, &mut batch, lsn, &changes);
        let mut batches = vec![batch];
        if random.below(16) == 0 {
            // Of two values of a key at one LSN the later one counts.
            for _ in 0..2 {
                let mut again = SerializedValueBatch::default();
                let change = (6 + random.below(6) as usize, random.next() as u32);
                put_record(&mut self.model, &mut again, lsn, &[change]);
                batches.push(again);
            }
        }
        self.records.push(Record { lsn, prev, batches, written: env::clock::now() });
        self.last = lsn;
        self.next += 8 + random.below(8) * 8;
    }

    /// Notes a record that a Postgres has written.
    fn note(&mut self, (_, lsn): (Lsn, Lsn)) {
        self.records.push(Record { lsn, prev: self.last, batches: Vec::new(), written: env::clock::now() });
        self.last = lsn;
    }
}

impl Origin {
    /// The source of a timeline whose own history begins at `begins`, after `inherited`, with what `model` says.
    pub fn new(id: TimelineId, begins: Lsn, model: Model, inherited: Vec<Lsn>, postgres: Option<Postgres>) -> Self {
        let (records, acknowledged, next) = (Vec::new(), Lsn(0), begins + 8);
        let history = History { records, model, postgres, acknowledged, sent: begins, next, last: begins };
        let (history, end) = (Arc::new(Mutex::new(history)), watch::Sender::new(begins));
        Self { id, begins, inherited: Arc::new(inherited), history, end }
    }

    /// The source of a branch of this one's timeline at `lsn`.
    pub fn branch(&self, id: TimelineId, lsn: Lsn) -> Self {
        let history = self.history.lock();
        let mut model = history.model.clone();
        model.truncate(lsn);
        let postgres = history.postgres.as_ref().map(|postgres| postgres.branch(lsn, &model));
        drop(history);
        Self::new(id, lsn, model, self.all_moments(lsn - 1), postgres)
    }

    /// Writes some records.
    pub fn write(&self, random: &mut Random) -> (u64, Lsn) {
        // Mostly few, sometimes more than a layer takes.
        let most = 1 << (2 + random.below(6));
        let count = 1 + random.below(most);
        let mut history = self.history.lock();
        let history = &mut *history;
        if history.postgres.is_none() {
            history.found_commit_log();
        }
        for _ in 0..count {
            match &mut history.postgres {
                Some(postgres) => {
                    let place = postgres.write(random, &mut history.model);
                    history.note(place);
                }
                None => history.write_values(random),
            }
        }
        let last = history.last;
        self.end.send_replace(last);
        (count, last)
    }

    /// If a Postgres writes it, that is on another timeline of its own from now on.
    pub fn promote(&self) -> Option<Lsn> {
        let mut history = self.history.lock();
        let place = history.postgres.as_mut()?.promote();
        history.note(place);
        self.end.send_replace(history.last);
        Some(history.last)
    }

    /// The last record is one that somebody waits for: counters alone may stay in memory for hours.
    pub fn commit(&self) {
        let mut history = self.history.lock();
        let history = &mut *history;
        let Some(postgres) = &mut history.postgres else { return };
        let place = postgres.commit(&mut history.model);
        history.note(place);
        self.end.send_replace(history.last);
    }

    /// Asks the Postgres that writes it, if one does.
    pub fn ask_postgres<T>(&self, question: impl FnOnce(&Postgres) -> T) -> Option<T> {
        self.history.lock().postgres.as_ref().map(question)
    }

    /// Up to `most` records after `lsn`.
    pub fn after(&self, lsn: Lsn, most: usize) -> Vec<Record> {
        let history = self.history.lock();
        let first = history.records.partition_point(|record| record.lsn <= lsn);
        history.records.iter().skip(first).take(most).cloned().collect()
    }

    /// The end of the last record.
    pub fn last(&self) -> Lsn {
        self.history.lock().last
    }

    /// Announces ends of records.
    pub fn watch(&self) -> watch::Receiver<Lsn> {
        self.end.subscribe()
    }

    /// A server promises that it has everything up to `lsn` for good.
    pub fn acknowledge(&self, lsn: Lsn) {
        let mut history = self.history.lock();
        history.acknowledged = history.acknowledged.max(lsn);
    }

    /// A server gets WAL up to `lsn`.
    pub fn note_sent(&self, lsn: Lsn) {
        let mut history = self.history.lock();
        history.sent = history.sent.max(lsn);
    }

    /// No server has ever had more than up to here.
    pub fn sent(&self) -> Lsn {
        self.history.lock().sent
    }

    /// What was promised.
    pub fn acknowledged(&self) -> Lsn {
        self.history.lock().acknowledged
    }

    /// Asks the model.
    pub fn ask<T>(&self, question: impl FnOnce(&Model) -> T) -> T {
        question(&self.history.lock().model)
    }

    /// When the first record after `lsn` was written, if there is one.
    pub fn written_after(&self, lsn: Lsn) -> Option<Instant> {
        let history = self.history.lock();
        let at = history.records.partition_point(|record| record.lsn <= lsn);
        history.records.get(at).map(|record| record.written)
    }

    /// Ends of records up to `last`, of its ancestors and its own.
    pub fn all_moments(&self, last: Lsn) -> Vec<Lsn> {
        let inherited = self.inherited.iter().copied().filter(|lsn| *lsn <= last);
        inherited.chain(self.moments(last)).collect()
    }

    /// Where its own history begins, and ends of its own records, up to `last`.
    pub fn moments(&self, last: Lsn) -> Vec<Lsn> {
        let history = self.history.lock();
        let own = history.records.iter().map(|record| record.lsn);
        std::iter::once(self.begins).chain(own).filter(|lsn| *lsn <= last).collect()
    }
}
