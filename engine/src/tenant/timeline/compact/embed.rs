//! Embeds images in delta layers: where many records of a page follow each other, one of them is replaced by the page
//! as it was after it, so that no read has to apply more.
//!
//! Which pages these are is known as soon as a window of versions is: as they were before the job's layers, they are
//! read together, and the records of the window applied to them.
//!
//! Below the cutoff layers may be trimmed: of a page they lack versions that nobody may read. So nothing from there is
//! taken to be all that there is, and the first page at or above the cutoff is read as any reader would.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;

use bytes::Bytes;
use pageserver_api::key::{CompactKey, Key};
use pageserver_api::keyspace::KeySpace;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use super::outputs::PAGE_BYTES;
use crate::context::RequestContext;
use crate::tenant::storage_layer::{KeyHistory, Version};
use crate::tenant::timeline::read;
use crate::tenant::timeline::rebuild::rebuild;
use crate::tenant::timeline::state::TimelineState;
use errors::{ErrorKind, StorageError};

/// Pages read together.
const PAGES_AT_ONCE: i128 = 512;
/// Keys whose numbers differ by less than this are read as one range.
const NEIGHBORS: i128 = 8;

/// Decides, version by version in order of (key, LSN), which ones are stored as images.
pub(super) struct Embedder<'a> {
    state: &'a TimelineState,
    /// Where the layers begin whose versions come.
    from: Lsn,
    /// Records of a page that may follow each other; 0: any number.
    limit: usize,
    /// Keys of the window that have more than that, those that are still to come.
    long: VecDeque<CompactKey>,
    /// The first of them as they were before `from`.
    before: BTreeMap<CompactKey, Bytes>,
    key: Option<CompactKey>,
    /// Whether it has more than that.
    is_long: bool,
    /// Records since the last version that needs no earlier one.
    chain: usize,
    /// What the page is made from that is embedded next, oldest record first; `None`: it has to be read.
    history: Option<KeyHistory>,
    /// The page cannot be rebuilt: its records stay as they are.
    given_up: bool,
    encoded: Vec<u8>,
    ctx: &'a RequestContext,
}

impl<'a> Embedder<'a> {
    /// For the versions of layers that begin at `from`; of a page not more than `limit` records may follow each other.
    pub(super) fn new(state: &'a TimelineState, from: Lsn, limit: usize, ctx: &'a RequestContext) -> Self {
        Self {
            state,
            from,
            limit,
            long: VecDeque::new(),
            before: BTreeMap::new(),
            key: None,
            is_long: false,
            chain: 0,
            history: None,
            given_up: false,
            encoded: Vec::new(),
            ctx,
        }
    }

    /// To be called with all versions that come next.
    pub(super) fn begin_window(&mut self, versions: &[Version]) {
        self.long.clear();
        self.before.clear();
        if self.limit == 0 {
            return;
        }
        let (mut key, mut chain) = (None, 0);
        for version in versions {
            let is_next = !version.will_init && key == Some(version.key);
            (key, chain) = (Some(version.key), if is_next { chain + 1 } else { usize::from(!version.will_init) });
            if chain > self.limit && self.long.back() != Some(&version.key) {
                self.long.push_back(version.key);
            }
        }
    }

    /// What is to be stored instead of a version, encoded, if not itself.
    pub(super) async fn instead(&mut self, version: &Version, value: &[u8]) -> Result<Option<&[u8]>, StorageError> {
        if self.limit == 0 {
            return Ok(None);
        }
        if self.key != Some(version.key) {
            self.begin(version).await?;
        }
        let is_whole = self.is_whole(version.lsn);
        if !is_whole {
            self.history = None;
        }
        if version.will_init {
            (self.chain, self.given_up) = (0, false);
            self.history = (self.is_long && is_whole).then(KeyHistory::default);
            self.note(version, value);
            return Ok(None);
        }
        self.chain += 1;
        self.note(version, value);
        if self.chain <= self.limit || self.given_up {
            return Ok(None);
        }
        if !is_whole || !self.has_room() {
            // What is not embedded is not gathered either.
            self.history = None;
            return Ok(None);
        }
        match self.page_as_of(version).await {
            Ok(page) => self.embed(version.lsn, page).map(Some),
            Err(error) if matches!(error.kind(), ErrorKind::Shutdown | ErrorKind::Fenced) => Err(error),
            // History went meanwhile. Later versions may still be read.
            Err(_) if !self.is_whole(version.lsn) => Ok(None),
            Err(error) => {
                // What is below may be damaged, or redo refuse a record: neither is this job's business.
                tracing::warn!(timeline = %self.state.timeline_id, "no image is embedded for a page: {error}");
                self.given_up = true;
                Ok(None)
            }
        }
    }

    /// Whether all of the history from `lsn` on is there.
    fn is_whole(&self, lsn: Lsn) -> bool {
        lsn >= self.state.retention.read().cutoff && self.state.check_own(lsn, self.state.ancestor().as_deref()).is_ok()
    }

    /// Whether there is room for an image without evicting anything: a job takes room for what it reads, and images
    /// make what it writes larger.
    fn has_room(&self) -> bool {
        self.state.conf.disk_budget.has_room_for(PAGE_BYTES)
    }

    /// Starts with another key.
    async fn begin(&mut self, version: &Version) -> Result<(), StorageError> {
        (self.key, self.chain, self.history, self.given_up) = (Some(version.key), 0, None, false);
        while self.long.front().is_some_and(|key| *key < version.key) {
            self.long.pop_front();
        }
        self.is_long = self.long.front() == Some(&version.key);
        if self.is_long && !version.will_init {
            let page = self.page_before(version.key).await?;
            self.history = page.map(|page| KeyHistory { image: Some((self.from, page)), ..KeyHistory::default() });
        }
        Ok(())
    }

    /// The page as it was before `from`, if it can be read.
    async fn page_before(&mut self, key: CompactKey) -> Result<Option<Bytes>, StorageError> {
        let before = Lsn(self.from.0.saturating_sub(1));
        if let Some(page) = self.before.remove(&key) {
            return Ok(Some(page));
        }
        if !self.is_whole(before) || !self.has_room() {
            return Ok(None);
        }
        let (keys, end) = self.next_pages();
        match read::get_vectored(self.state, &keys, before, self.ctx).await {
            Ok(found) => {
                let found = found.into_iter().filter_map(|(key, page)| Some((key.to_compact(), page.ok()?)));
                let wanted = self.long.iter().take_while(|key| **key < end);
                let wanted: HashSet<CompactKey> = wanted.copied().collect();
                self.before = found.filter(|(key, _)| wanted.contains(key)).collect();
            }
            Err(error) if matches!(error.kind(), ErrorKind::Shutdown | ErrorKind::Fenced) => return Err(error),
            // One page alone may still be read.
            Err(_) => {}
        }
        Ok(self.before.remove(&key))
    }

    /// Which pages are read next, and where they end. A range of neighbors is quicker to read than most of them apart.
    fn next_pages(&self) -> (KeySpace, CompactKey) {
        let (mut ranges, mut pages): (Vec<Range<i128>>, i128) = (Vec::new(), 0);
        for key in self.long.iter().map(|key| key.to_i128()) {
            match ranges.last_mut().filter(|range| key - range.end < NEIGHBORS) {
                Some(range) => {
                    pages += key + 1 - range.end;
                    range.end = key + 1;
                }
                None => {
                    pages += 1;
                    ranges.push(key..key + 1);
                }
            }
            if pages >= PAGES_AT_ONCE {
                break;
            }
        }
        let end = CompactKey::from(ranges.last().map_or(0, |range| range.end));
        let key = |number| Key::from_compact(CompactKey::from(number));
        (KeySpace::from_ranges(ranges.into_iter().map(|range| key(range.start)..key(range.end)).collect()), end)
    }

    /// Notes a version from which the next image is made.
    fn note(&mut self, version: &Version, value: &[u8]) {
        let Some(history) = &mut self.history else { return };
        match Value::decode(&Bytes::copy_from_slice(value)) {
            Ok(Value::WalRecord(record)) => history.records.push((version.lsn, record)),
            Ok(Value::Image(image)) if version.will_init => history.image = Some((version.lsn, image)),
            _ => self.given_up = true,
        }
    }

    async fn page_as_of(&mut self, version: &Version) -> Result<Bytes, StorageError> {
        let key = Key::from_compact(version.key);
        let is_early = fault::planted(fault::Bug::EmbedTooEarly);
        let Some(mut history) = self.history.take() else {
            return read::get(self.state, key, Lsn(version.lsn.0 - u64::from(is_early)), self.ctx).await;
        };
        if is_early {
            history.records.pop();
        }
        history.records.reverse();
        rebuild(key, version.lsn, history, &self.state.redo_settings())
    }

    fn embed(&mut self, lsn: Lsn, page: Bytes) -> Result<&[u8], StorageError> {
        self.encoded.clear();
        let value = Value::Image(page.clone());
        value.encode_into(&mut self.encoded).map_err(|error| StorageError::Internal(error.to_string()))?;
        self.state.conf.disk_budget.note_used(page.len() as u64);
        self.chain = 0;
        self.history = Some(KeyHistory { image: Some((lsn, page)), ..KeyHistory::default() });
        Ok(&self.encoded)
    }
}
