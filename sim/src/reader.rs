//! Reads a timeline at several moments of its history, and compares all that is found with the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::tenant::timeline::Timeline;
use errors::{ErrorKind, StorageError};
use pageserver_api::key::{Key, rel_block_key};
use pageserver_api::keyspace::{KeySpace, KeySpaceBuilder};
use parking_lot::Mutex;
use pgdata::TimelineStore;
use pgdata::listing::Listing;
use simulated::random::Random;
use utils::lsn::Lsn;

use crate::origin::Origin;
use crate::plan::Setting;
use crate::postgres::{DATABASE, TABLESPACE, commit_log, pages, tables};
use crate::server::context;
use crate::story::{Story, violation};
use crate::weather::Weather;

/// Where a promise is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The call has not returned, or not as hoped for: it may have had its effect, or not.
    Perhaps,
    /// The owner's disk has it.
    OnDisk,
    /// The bucket has it.
    InBucket,
}

/// A moment that somebody was told would be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promise {
    /// The moment.
    pub lsn: Lsn,
    /// The hold's name, if it is one.
    pub name: Option<String>,
    /// When it ends.
    pub until: Option<Instant>,
    /// Where it is written down.
    pub kept: Kept,
}

/// The promises of a timeline. Cheap to clone.
pub type Promises = Arc<Mutex<Vec<Promise>>>;

/// What a reader knows of a timeline.
#[derive(Clone)]
pub struct Subject {
    /// The source of its WAL.
    pub origin: Origin,
    /// Moments of it that have to be kept.
    pub promises: Promises,
    /// How much is kept anyway.
    pub setting: Setting,
    /// So many bytes of history are kept, unless it was more once.
    pub gc_horizon: u64,
    /// What fails.
    pub weather: Weather,
    /// Where it is told.
    pub story: Story,
    /// Who is asked.
    pub server: &'static str,
    /// Who should be.
    pub owner: Arc<Mutex<&'static str>>,
    /// Clocks were never set, so that times can be relied upon.
    pub clocks_agree: bool,
    /// An owner that did not know of it may have removed what it inherits: reads may be refused.
    pub may_lack: bool,
}

/// How a read was asked for.
pub struct Asked {
    began: Instant,
    /// Why its moment had to be readable all the time, if so.
    promised: Option<&'static str>,
    /// Whether it was the owner that was asked, all the time.
    of_owner: bool,
    /// Whether nothing failed any more.
    is_calm: bool,
}

impl Subject {
    /// Reads at `count` moments, with a pause after each.
    pub async fn read_some(self, timeline: Timeline, count: u64, mut random: Random) {
        for _ in 0..count {
            let last = timeline.last_record_lsn();
            let mut moments = self.origin.all_moments(last);
            moments.extend(self.promises.lock().iter().map(|promise| promise.lsn).filter(|lsn| *lsn <= last));
            let lsn = moments[random.below(moments.len() as u64) as usize];
            self.read(&timeline, lsn, false).await;
            env::clock::sleep(Duration::from_millis(random.below(500))).await;
        }
    }

    /// Reads at up to `most` moments of the whole history, the last and all that were promised among them. Nothing
    /// fails any more.
    pub async fn read_all(&self, timeline: &Timeline, most: usize) -> u64 {
        let last = timeline.last_record_lsn();
        let all = self.origin.moments(last);
        let mut moments: BTreeSet<Lsn> = all.iter().rev().step_by(all.len().div_ceil(most)).copied().collect();
        moments.extend(self.promises.lock().iter().map(|promise| promise.lsn).filter(|lsn| *lsn <= last));
        for lsn in &moments {
            self.read(timeline, *lsn, true).await;
        }
        moments.len() as u64
    }

    /// Reads everything as of `lsn`.
    async fn read(&self, timeline: &Timeline, lsn: Lsn, is_calm: bool) {
        let asked = self.asked(timeline, lsn, is_calm);
        let found = match self.setting.is_postgres {
            true => self.find_pages(timeline, lsn).await,
            false => timeline.get_vectored(&KeySpace::single(Key::MIN..Key::MAX), lsn, &context()).await,
        };
        let asked = self.still(asked, timeline, lsn);
        let (id, server) = (timeline.timeline_id(), self.server);
        let judge = |what: &str, error: &StorageError| {
            if let Some(why) = self.why_wrong(error, &asked) {
                violation!(self.story, "{server}: {id}{what} at {lsn}: {error}; but {why}");
            }
        };
        let found = match found {
            Ok(found) => found,
            Err(error) => return judge("", &error),
        };
        let expected = self.origin.ask(|model| match self.setting.is_postgres {
            true => pages(model, lsn),
            false => model.values(&(Key::MIN..Key::MAX), lsn),
        });
        if !found.keys().eq(expected.keys()) {
            let (is, was) = (found.len(), expected.len());
            violation!(self.story, "{server}: {id} at {lsn} has {is} keys, and should have {was}");
        }
        for (key, value) in found {
            match value {
                Ok(value) if expected.get(&key) == Some(&value) => {}
                Ok(_) => violation!(self.story, "{server}: {id}: {key} at {lsn} is wrong"),
                Err(error) => judge(&format!(": {key}"), &error),
            }
        }
    }

    /// All pages that there are of tables and of the commit log.
    async fn find_pages(
        &self,
        timeline: &Timeline,
        lsn: Lsn,
    ) -> Result<BTreeMap<Key, Result<Bytes, StorageError>>, StorageError> {
        let store = TimelineStore::new(timeline.clone(), context());
        let found = Listing::new(&store, lsn).relations(TABLESPACE, DATABASE).await?;
        let expected = self.origin.ask(|model| tables(model, lsn));
        if found != expected {
            let (id, server) = (timeline.timeline_id(), self.server);
            violation!(self.story, "{server}: tables of {id} at {lsn} are {found:?}, and should be {expected:?}");
        }
        let mut keys = KeySpaceBuilder::default();
        for (rel, size) in found {
            keys.add_range(rel_block_key(rel, 0)..rel_block_key(rel, size));
        }
        keys.add_range(commit_log());
        timeline.get_vectored(&keys.build(), lsn, &context()).await
    }

    /// What has to be known of a read before it begins.
    pub fn asked(&self, timeline: &Timeline, lsn: Lsn, is_calm: bool) -> Asked {
        let promised = self.why_promised(timeline, lsn);
        Asked { began: env::clock::now(), promised, of_owner: self.is_owners(), is_calm }
    }

    /// What of it still holds when the read has ended.
    pub fn still(&self, asked: Asked, timeline: &Timeline, lsn: Lsn) -> Asked {
        let promised = asked.promised.filter(|_| self.why_promised(timeline, lsn).is_some());
        Asked { promised, of_owner: asked.of_owner && self.is_owners(), ..asked }
    }

    /// Why a read must not be refused, if so, where only the text of the refusal is known.
    pub fn why_refused(&self, text: &str, asked: &Asked) -> Option<&'static str> {
        if self.may_lack {
            return None;
        }
        if asked.is_calm {
            return Some("nothing fails any more");
        }
        let may_be = ["shutting down", "timed out while waiting for WAL", "another server has taken the tenant over"];
        let may_be = may_be.iter().any(|reason| text.contains(reason));
        asked.promised.filter(|_| !may_be && asked.of_owner && !self.weather.was_bad_since(asked.began))
    }

    fn is_owners(&self) -> bool {
        *self.owner.lock() == self.server
    }

    /// Why `lsn` has to be readable, if so.
    fn why_promised(&self, timeline: &Timeline, lsn: Lsn) -> Option<&'static str> {
        let now = env::clock::now();
        let holds = |promise: &Promise| {
            promise.lsn == lsn && promise.kept != Kept::Perhaps && promise.until.is_none_or(|until| until > now)
        };
        if self.promises.lock().iter().any(holds) {
            return Some("it is held or leased");
        }
        if lsn < self.origin.begins {
            // How much is kept of what it inherits is up to the ancestor.
            return None;
        }
        // Who had more once may have let go of what was too old then.
        if lsn + self.gc_horizon >= timeline.last_record_lsn().max(self.origin.sent()) {
            return Some("it is within gc_horizon");
        }
        // It was the end of history until the next record was written.
        let next = self.origin.written_after(lsn)?;
        let is_young = self.clocks_agree && next + self.setting.pitr_interval > now;
        is_young.then_some("it is within pitr_interval")
    }

    /// Why `error` must not be, if so.
    fn why_wrong(&self, error: &StorageError, asked: &Asked) -> Option<&'static str> {
        match error.kind() {
            _ if self.may_lack => None,
            ErrorKind::Invalid => asked.promised.filter(|_| asked.of_owner),
            _ if asked.is_calm => Some("nothing fails any more"),
            // The ancestor's WAL may have to come again. An owner that is to have the tenant back need not have it yet.
            ErrorKind::Shutdown | ErrorKind::Retry | ErrorKind::Fenced => None,
            _ if !asked.of_owner || self.weather.was_bad_since(asked.began) => None,
            _ => Some("nothing has failed"),
        }
    }
}
