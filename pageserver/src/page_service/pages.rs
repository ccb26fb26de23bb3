//! Pages for a batch of requests: one wait, and one vectored read per LSN.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use pageserver_api::key::{Key, rel_block_key, rel_size_key};
use pageserver_api::keyspace::KeySpaceBuilder;
use pageserver_api::pagestream::{PAGE_SIZE, Query, Request, RequestHeader};
use pageserver_api::reltag::{BlockNumber, FSM_FORK, RelTag, VM_FORK};
use utils::lsn::Lsn;
use wal_decoder::tablespaces::{FIRST_SLOT, TablespaceError};

use super::lsn::{check, effective, wait_for};
use super::rel_sizes::{RelSizes, Size, Unknown};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::timeline::Timeline;
use errors::StorageError;
use pgdata::TimelineStore;
use pgdata::listing::{Listing, rel_size_among, rel_size_keys};
use traces::Trace;

/// Returned for blocks beyond the end of a relation.
static ZERO_PAGE: [u8; PAGE_SIZE] = [0; PAGE_SIZE];

/// Reads a timeline for a client.
pub(super) struct Reader<'a> {
    store: TimelineStore,
    sizes: &'a RelSizes,
    wait_limit: Duration,
}

/// A block of a relation, as named in keys.
struct Wanted {
    rel: RelTag,
    block: BlockNumber,
}

impl<'a> Reader<'a> {
    pub(super) fn new(timeline: Timeline, sizes: &'a RelSizes, wait_limit: Duration) -> Self {
        let ctx = RequestContext::new(TaskKind::PageRequestHandler, DownloadBehavior::Download);
        Self { store: TimelineStore::new(timeline, ctx), sizes, wait_limit }
    }

    pub(super) fn timeline(&self) -> &Timeline {
        self.store.timeline()
    }

    pub(super) fn listing(&self, lsn: Lsn) -> Listing<'_, TimelineStore> {
        Listing::new(&self.store, lsn)
    }

    /// The LSN at which to answer a request; waits until everything it needs has arrived.
    pub(super) async fn lsn(&self, header: &RequestHeader) -> Result<Lsn, StorageError> {
        check(header).map_err(StorageError::Invalid)?;
        wait_for(self.timeline(), header.not_modified_since, self.wait_limit).await?;
        let lsn = effective(header, self.timeline().last_record_lsn()).map_err(StorageError::Invalid)?;
        self.timeline().check_readable(lsn)?;
        self.timeline().check_owned(lsn)?;
        Ok(lsn)
    }

    /// The LSNs of a batch, and how long it waited: only once, for the newest LSN that any of the requests needs.
    async fn lsns(&self, requests: &[Request]) -> (Vec<Result<Lsn, StorageError>>, Duration) {
        let good = requests.iter().filter(|request| check(&request.header).is_ok());
        let newest = good.map(|request| request.header.not_modified_since).max().unwrap_or(Lsn::INVALID);
        // If that does not arrive, requests that need less are still answered.
        let began = env::clock::now();
        let waited = wait_for(self.timeline(), newest, self.wait_limit).await;
        let took = env::clock::now().saturating_duration_since(began);
        let last = self.timeline().last_record_lsn();
        let shut_down = matches!(waited, Err(StorageError::Shutdown));
        let resolve = |request: &Request| {
            check(&request.header).map_err(StorageError::Invalid)?;
            if shut_down {
                return Err(StorageError::Shutdown);
            }
            let lsn = effective(&request.header, last).map_err(StorageError::Invalid)?;
            self.timeline().check_readable(lsn)?;
            self.timeline().check_owned(lsn)?;
            Ok(lsn)
        };
        (requests.iter().map(resolve).collect(), took)
    }

    /// The requested pages, in request order. All requests must be for pages.
    pub(super) async fn pages(&self, requests: &[Request], trace: Option<&Trace>) -> Vec<Result<Bytes, StorageError>> {
        let mut groups = BTreeMap::<Lsn, Vec<usize>>::new();
        let mut answers: Vec<Option<Result<Bytes, StorageError>>> = Vec::with_capacity(requests.len());
        let began = trace.map(|_| env::clock::now());
        let (lsns, waited) = self.lsns(requests).await;
        if let (Some(trace), Some(began)) = (trace, began) {
            trace.part(None, "wait for WAL", began, waited, Vec::new());
        }
        for (number, lsn) in lsns.into_iter().enumerate() {
            match lsn {
                Ok(lsn) => {
                    groups.entry(lsn).or_default().push(number);
                    answers.push(None);
                }
                Err(error) => answers.push(Some(Err(error))),
            }
        }
        for (lsn, numbers) in groups {
            let group: Vec<&Request> = numbers.iter().filter_map(|number| requests.get(*number)).collect();
            for (number, page) in numbers.iter().zip(self.pages_at(lsn, &group, waited, trace).await) {
                if let Some(answer) = answers.get_mut(*number) {
                    *answer = Some(page);
                }
            }
        }
        let missing = || Err(StorageError::Internal("a request was left out of its batch".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(missing)).collect()
    }

    /// The pages of a group as of one LSN, for which the batch has `waited`. Sizes that are not known are read with the
    /// pages: these may have to come from the bucket, and would wait one after the other.
    async fn pages_at(
        &self,
        lsn: Lsn,
        requests: &[&Request],
        waited: Duration,
        trace: Option<&Trace>,
    ) -> Vec<Result<Bytes, StorageError>> {
        let mut sizes = KnownSizes { reader: self, lsn, known: Vec::new() };
        let mut keys = KeySpaceBuilder::default();
        let mut places = Vec::with_capacity(requests.len());
        for request in requests {
            let place = match request.query {
                Query::GetPage(rel, block) => sizes.place(rel, block, &mut keys).await,
                _ => Err(StorageError::Internal("not a request for a page".to_owned())),
            };
            places.push(place);
        }
        let keys = keys.build();
        let mut found = if keys.is_empty() {
            BTreeMap::new()
        } else {
            let ctx = self.store.ctx().having_waited(waited).with_trace(trace.cloned());
            match self.timeline().get_vectored(&keys, lsn, &ctx).await {
                Ok(found) => found,
                Err(error) => return fail_all(places, &error),
            }
        };
        sizes.learn(&mut found);
        let mut taken = BTreeMap::<Key, Bytes>::new();
        let mut page = |place| match place {
            Place::Beyond => Ok(Bytes::from_static(&ZERO_PAGE)),
            Place::Within(wanted) => take_page(wanted, lsn, &mut found, &mut taken),
            Place::Unknown(at, wanted) => match sizes.is_within(at, wanted.block)? {
                true => take_page(wanted, lsn, &mut found, &mut taken),
                false => Ok(Bytes::from_static(&ZERO_PAGE)),
            },
        };
        places.into_iter().map(|place| page(place?)).collect()
    }

    /// The size of a fork, given with its tablespace's OID; also returns the fork as named in keys.
    pub(super) async fn size(&self, rel: RelTag, lsn: Lsn) -> Result<(RelTag, Size), StorageError> {
        let Some(rel) = self.in_keys(rel, lsn).await? else { return Ok((rel, None)) };
        Ok((rel, self.sizes.get(self.timeline(), &self.store, rel, lsn).await?))
    }

    /// The fork as named in keys; `None` if the tablespace does not exist.
    async fn in_keys(&self, rel: RelTag, lsn: Lsn) -> Result<Option<RelTag>, StorageError> {
        if rel.spcnode < FIRST_SLOT {
            return Ok(Some(rel));
        }
        match self.listing(lsn).tablespaces().await?.number(rel.spcnode) {
            Ok(number) => Ok(Some(RelTag { spcnode: number, ..rel })),
            Err(TablespaceError::Unknown(_) | TablespaceError::Full(_)) => Ok(None),
        }
    }
}

/// Where the page for a request is.
enum Place {
    /// In the relation.
    Within(Wanted),
    /// Beyond the relation's end.
    Beyond,
    /// In the relation, if that is so large: its size, which is number so much of the batch, is read with the page.
    Unknown(usize, Wanted),
}

/// A size that the requests of a batch need.
enum BatchSize {
    Known(Size),
    Unknown(Unknown),
    /// It could not be read: all pages of the relation fail.
    Failed(StorageError),
}

/// Sizes already looked up for a batch: most batches are about one relation.
struct KnownSizes<'a> {
    reader: &'a Reader<'a>,
    lsn: Lsn,
    /// By the fork as asked for: as named in keys, and the size.
    known: Vec<(RelTag, RelTag, BatchSize)>,
}

impl KnownSizes<'_> {
    /// The page for a request. Adds to `keys` what has to be read for it.
    async fn place(
        &mut self,
        asked: RelTag,
        block: BlockNumber,
        keys: &mut KeySpaceBuilder,
    ) -> Result<Place, StorageError> {
        let at = match self.known.iter().position(|(rel, ..)| *rel == asked) {
            Some(at) => at,
            None => self.look_up(asked, keys).await?,
        };
        let Some((_, rel, size)) = self.known.get(at) else { return Ok(Place::Beyond) };
        let wanted = Wanted { rel: *rel, block };
        let place = match size {
            BatchSize::Known(size) if block >= blocks_or_error(*rel, *size, self.lsn)? => return Ok(Place::Beyond),
            BatchSize::Known(_) => Place::Within(wanted),
            BatchSize::Unknown(_) | BatchSize::Failed(_) => Place::Unknown(at, wanted),
        };
        keys.add_key(rel_block_key(*rel, block));
        Ok(place)
    }

    /// Notes a relation, and what to read if its size is not known. Returns its number.
    async fn look_up(&mut self, asked: RelTag, keys: &mut KeySpaceBuilder) -> Result<usize, StorageError> {
        let found = match self.reader.in_keys(asked, self.lsn).await? {
            None => (asked, asked, BatchSize::Known(None)),
            Some(rel) => match self.reader.sizes.known(self.reader.timeline(), rel, self.lsn) {
                Ok(size) => (asked, rel, BatchSize::Known(size)),
                Err(unknown) => {
                    rel_size_keys(rel).into_iter().for_each(|key| keys.add_key(key));
                    (asked, rel, BatchSize::Unknown(unknown))
                }
            },
        };
        self.known.push(found);
        Ok(self.known.len() - 1)
    }

    /// Takes the sizes that were not known from what was read.
    fn learn(&mut self, found: &mut BTreeMap<Key, Result<Bytes, StorageError>>) {
        for (_, rel, size) in &mut self.known {
            let BatchSize::Unknown(unknown) = *size else { continue };
            *size = match rel_size_among(*rel, self.lsn, |key| found.remove(&key).transpose()) {
                Ok(read) => {
                    self.reader.sizes.learn(self.reader.timeline(), unknown, self.lsn, read);
                    BatchSize::Known(read)
                }
                Err(error) => BatchSize::Failed(error),
            };
        }
    }

    /// Whether relation number `at` has `block`, once its size was read.
    fn is_within(&self, at: usize, block: BlockNumber) -> Result<bool, StorageError> {
        match self.known.get(at) {
            Some((_, rel, BatchSize::Known(size))) => Ok(block < blocks_or_error(*rel, *size, self.lsn)?),
            Some((_, _, BatchSize::Failed(error))) => Err(same_for_each(error)),
            _ => Err(StorageError::Internal("the size of a relation was not read".to_owned())),
        }
    }
}

/// The number of blocks. A map fork that does not exist is empty; any other fork must exist.
pub(super) fn blocks_or_error(rel: RelTag, size: Size, lsn: Lsn) -> Result<BlockNumber, StorageError> {
    match size {
        Some(blocks) => Ok(blocks),
        None if matches!(rel.forknum, FSM_FORK | VM_FORK) => Ok(0),
        None => Err(StorageError::Invalid(format!(
            "relation {rel} does not exist at LSN {lsn}: could not find data for key {}",
            rel_size_key(rel)
        ))),
    }
}

/// Takes a page from `found`; a page that is requested more than once is found in `taken` after the first time.
fn take_page(
    Wanted { rel, block }: Wanted,
    lsn: Lsn,
    found: &mut BTreeMap<Key, Result<Bytes, StorageError>>,
    taken: &mut BTreeMap<Key, Bytes>,
) -> Result<Bytes, StorageError> {
    let key = rel_block_key(rel, block);
    if let Some(page) = taken.get(&key) {
        return Ok(page.clone());
    }
    let page = found.remove(&key).unwrap_or(Err(StorageError::MissingKey { key, lsn }))?;
    if page.len() != PAGE_SIZE {
        return Err(StorageError::Internal(format!("block {block} of {rel} has {} bytes", page.len())));
    }
    taken.insert(key, page.clone());
    Ok(page)
}

/// The whole read failed, and so did each request that needed it.
fn fail_all(places: Vec<Result<Place, StorageError>>, error: &StorageError) -> Vec<Result<Bytes, StorageError>> {
    let fail = |place: Result<Place, StorageError>| match place? {
        Place::Beyond => Ok(Bytes::from_static(&ZERO_PAGE)),
        Place::Within(_) | Place::Unknown(..) => Err(same_for_each(error)),
    };
    places.into_iter().map(fail).collect()
}

/// An error that several requests have in common.
fn same_for_each(error: &StorageError) -> StorageError {
    match error {
        StorageError::Shutdown => StorageError::Shutdown,
        StorageError::Invalid(reason) => StorageError::Invalid(reason.clone()),
        other => StorageError::Internal(other.to_string()),
    }
}
