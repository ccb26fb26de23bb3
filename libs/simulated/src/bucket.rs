//! An object store that fails on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use futures_util::{FutureExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, Extensions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;

use crate::bodies;
use crate::random::Random;

/// A kind of request to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Op {
    /// A whole object, which may replace another.
    Put,
    /// A whole object, if there is none of that name.
    Create,
    /// Any step of an upload in parts.
    Multipart,
    /// A whole object.
    Get,
    /// A part of an object.
    GetRange,
    /// What is known of an object.
    Head,
    /// Names.
    List,
    /// Removal of any number of objects.
    Delete,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Put, Self::Create, Self::Multipart, Self::Get, Self::GetRange, Self::Head, Self::List, Self::Delete];
}

/// A kind of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// An error before anything is done.
    ErrorBefore,
    /// The request is done, but the reply is lost.
    ErrorAfter,
    /// No answer, ever.
    Timeout,
    /// This call and the next four are throttled.
    Burst,
    /// A body that stops halfway and never ends.
    SlowBody,
    /// A body that ends early.
    TruncatedBody,
    /// Bytes other than those requested.
    WrongRange,
    /// A stale listing: the previous one.
    StaleList,
    /// A listing in the wrong order, with a duplicate.
    ReorderedList,
    /// The store claims that the precondition failed.
    Precondition,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::ErrorBefore,
        Self::ErrorAfter,
        Self::Timeout,
        Self::Burst,
        Self::SlowBody,
        Self::TruncatedBody,
        Self::WrongRange,
        Self::StaleList,
        Self::ReorderedList,
        Self::Precondition,
    ];

    /// Whether the fault can affect `op` in its own way; otherwise an error is returned before anything is done.
    pub fn applies(self, op: Op) -> bool {
        match self {
            Self::SlowBody | Self::TruncatedBody => matches!(op, Op::Get | Op::GetRange | Op::List),
            Self::WrongRange => op == Op::GetRange,
            Self::StaleList | Self::ReorderedList => op == Op::List,
            _ => true,
        }
    }
}

/// Returns the fault for a call, given its operation and its number (from 0, counted per operation).
pub type Plan = Box<dyn FnMut(Op, u64, &Path) -> Option<Fault> + Send>;

/// Told of each call before anything is done.
pub type Observer = Box<dyn Fn(Op, &Path) + Send + Sync>;

/// Number of further calls in a burst.
const BURST: u64 = 4;

#[derive(Default)]
struct State {
    plan: Mutex<Option<Plan>>,
    observer: OnceLock<Observer>,
    calls: Mutex<BTreeMap<Op, u64>>,
    injected: Mutex<BTreeMap<(Op, Fault), u64>>,
    burst: Mutex<BTreeMap<Op, u64>>,
    /// The last listing of each prefix.
    lists: Mutex<BTreeMap<String, Vec<ObjectMeta>>>,
    /// The last listing of directories of each prefix.
    dirs: Mutex<BTreeMap<String, Vec<Path>>>,
    /// What all lists tell, whatever there is.
    lagging: Mutex<Option<Vec<ObjectMeta>>>,
    latency_micros: AtomicU64,
    reply_micros: AtomicU64,
    /// By which latencies of bodies are drawn, and their maximum in microseconds.
    slow_reads: Mutex<Option<(Random, u64)>>,
    gone: AtomicBool,
    denied: AtomicBool,
    corrupting: AtomicBool,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
    in_flight: AtomicU64,
    max_in_flight: AtomicU64,
    failed: AtomicU64,
}

/// See the module's documentation.
pub struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    state: Arc<State>,
}

/// How to proceed with a call.
enum Verdict {
    Do,
    DoThenFail,
    Fault(Fault),
}

fn error(text: &str) -> Error {
    Error::Generic { store: "Faulty", source: text.to_owned().into() }
}

impl FaultyStore {
    /// A view of `inner` with faults of its own, none at first.
    pub fn new(inner: Arc<dyn ObjectStore>) -> Arc<Self> {
        Arc::new(Self { inner, state: Arc::default() })
    }

    /// Tells `observer` of each call from now on. The first stays.
    pub fn observe(&self, observer: Observer) {
        let _ = self.state.observer.set(observer);
    }

    /// Makes calls fail according to `plan` from now on.
    pub fn set_plan(&self, plan: impl FnMut(Op, u64, &Path) -> Option<Fault> + Send + 'static) {
        *self.state.plan.lock() = Some(Box::new(plan));
    }

    /// Stops planned faults; the switches below stay in effect.
    pub fn clear_plan(&self) {
        *self.state.plan.lock() = None;
        self.state.burst.lock().clear();
    }

    /// Adds latency to every call.
    pub fn set_latency(&self, latency: Duration) {
        self.state.latency_micros.store(latency.as_micros() as u64, Ordering::Relaxed);
    }

    /// Adds latency to every reply about a whole object, after what was asked for is done.
    pub fn set_reply_latency(&self, latency: Duration) {
        self.state.reply_micros.store(latency.as_micros() as u64, Ordering::Relaxed);
    }

    /// Adds up to `most` to every read of contents, drawn from `seed`; zero: nothing.
    pub fn slow_reads(&self, seed: u64, most: Duration) {
        *self.state.slow_reads.lock() = (!most.is_zero()).then(|| (Random::new(seed), most.as_micros() as u64));
    }

    /// All lists tell what there is now, until [`Self::thaw_lists`]: they lag behind.
    ///
    /// # Errors
    /// Those of the store below.
    pub async fn freeze_lists(&self) -> Result<()> {
        let found = self.inner.list(None).try_collect().await?;
        *self.state.lagging.lock() = Some(found);
        Ok(())
    }

    /// Lists tell what there is.
    pub fn thaw_lists(&self) {
        *self.state.lagging.lock() = None;
    }

    /// Makes all connections fail, until switched back.
    pub fn set_gone(&self, gone: bool) {
        self.state.gone.store(gone, Ordering::Relaxed);
    }

    /// Rejects all credentials, until switched back.
    pub fn set_denied(&self, denied: bool) {
        self.state.denied.store(denied, Ordering::Relaxed);
    }

    /// Flips one bit in every body read, until switched back.
    pub fn set_corrupting(&self, corrupting: bool) {
        self.state.corrupting.store(corrupting, Ordering::Relaxed);
    }

    /// Number of calls of an operation so far, including retries.
    pub fn calls(&self, op: Op) -> u64 {
        self.state.calls.lock().get(&op).copied().unwrap_or(0)
    }

    /// Number of all calls so far.
    pub fn total_calls(&self) -> u64 {
        self.state.calls.lock().values().sum()
    }

    /// Number of calls that had a fault, including bursts.
    pub fn failed(&self) -> u64 {
        self.state.failed.load(Ordering::Relaxed)
    }

    /// Number of injected faults of each kind.
    pub fn injected(&self) -> BTreeMap<(Op, Fault), u64> {
        self.state.injected.lock().clone()
    }

    /// Bytes read.
    pub fn bytes_in(&self) -> u64 {
        self.state.bytes_in.load(Ordering::Relaxed)
    }

    /// Bytes written.
    pub fn bytes_out(&self) -> u64 {
        self.state.bytes_out.load(Ordering::Relaxed)
    }

    /// Maximum number of concurrent calls.
    pub fn max_in_flight(&self) -> u64 {
        self.state.max_in_flight.load(Ordering::Relaxed)
    }
}

/// Counts a call as in flight while it exists.
struct InFlight(Arc<State>);

impl Drop for InFlight {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

impl State {
    fn count(self: &Arc<Self>) -> InFlight {
        let now = self.in_flight.fetch_add(1, Ordering::Relaxed) + 1;
        self.max_in_flight.fetch_max(now, Ordering::Relaxed);
        InFlight(Arc::clone(self))
    }

    /// Delays, fails, or decides how to proceed.
    async fn enter(self: &Arc<Self>, op: Op, path: &Path) -> Result<(Verdict, InFlight)> {
        let in_flight = self.count();
        if let Some(observer) = self.observer.get() {
            observer(op, path);
        }
        let number = {
            let mut calls = self.calls.lock();
            let count = calls.entry(op).or_default();
            *count += 1;
            *count - 1
        };
        let latency = self.latency_micros.load(Ordering::Relaxed) + self.latency_of_body(op);
        if latency > 0 {
            env::clock::sleep(Duration::from_micros(latency)).await;
        }
        if self.gone.load(Ordering::Relaxed) {
            return Err(error("connection refused: the store is gone"));
        }
        if self.denied.load(Ordering::Relaxed) {
            return Err(Error::PermissionDenied { path: path.to_string(), source: "403 Forbidden".into() });
        }
        Ok((self.verdict(op, number, path).await?, in_flight))
    }

    /// The way back.
    async fn come_back(&self) {
        let latency = self.reply_micros.load(Ordering::Relaxed);
        if latency > 0 {
            env::clock::sleep(Duration::from_micros(latency)).await;
        }
    }

    fn latency_of_body(&self, op: Op) -> u64 {
        let mut slow = self.slow_reads.lock();
        let slow = slow.as_mut().filter(|_| matches!(op, Op::Get | Op::GetRange));
        slow.map_or(0, |(random, most)| random.below(*most + 1))
    }

    /// What a lagging list of `prefix` tells, if lists lag.
    fn lagging(&self, prefix: Option<&Path>) -> Option<Vec<ObjectMeta>> {
        let lagging = self.lagging.lock();
        let is_below = |object: &&ObjectMeta| prefix.is_none_or(|prefix| object.location.prefix_matches(prefix));
        Some(lagging.as_ref()?.iter().filter(is_below).cloned().collect())
    }

    async fn verdict(&self, op: Op, number: u64, path: &Path) -> Result<Verdict> {
        if let Some(left) = self.burst.lock().get_mut(&op).filter(|left| **left > 0) {
            *left -= 1;
            self.failed.fetch_add(1, Ordering::Relaxed);
            return Err(error("503 Service Unavailable: SlowDown"));
        }
        let planned = self.plan.lock().as_mut().and_then(|plan| plan(op, number, path));
        let Some(fault) = planned else { return Ok(Verdict::Do) };
        *self.injected.lock().entry((op, fault)).or_default() += 1;
        self.failed.fetch_add(1, Ordering::Relaxed);
        match fault {
            Fault::ErrorAfter => Ok(Verdict::DoThenFail),
            Fault::Timeout => std::future::pending().await,
            Fault::Burst => {
                self.burst.lock().insert(op, BURST);
                Err(error("503 Service Unavailable: SlowDown"))
            }
            Fault::Precondition => {
                Err(Error::Precondition { path: path.to_string(), source: "412 Precondition Failed".into() })
            }
            fault if fault != Fault::ErrorBefore && fault.applies(op) => Ok(Verdict::Fault(fault)),
            _ => Err(error("connection reset before anything was done")),
        }
    }
}

/// The reply to a completed request, or its loss.
fn reply<T>(verdict: &Verdict, done: Result<T>) -> Result<T> {
    match verdict {
        Verdict::DoThenFail => done.and(Err(error("connection reset after it was done"))),
        _ => done,
    }
}

/// Of the objects below `prefix` those directly in it, and the directories of the others.
fn delimited(prefix: Option<&Path>, objects: Vec<ObjectMeta>) -> ListResult {
    let root = Path::default();
    let prefix = prefix.unwrap_or(&root);
    let mut dirs = BTreeSet::new();
    let mut here = Vec::new();
    for object in objects {
        let parts: Option<Vec<_>> = object.location.prefix_match(prefix).map(Iterator::collect);
        match parts.as_deref() {
            Some([dir, _, ..]) => {
                dirs.insert(prefix.clone().join(dir.as_ref()));
            }
            _ => here.push(object),
        }
    }
    ListResult { common_prefixes: dirs.into_iter().collect(), objects: here, extensions: Extensions::default() }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let op = if options.mode == PutMode::Create { Op::Create } else { Op::Put };
        let (verdict, _in_flight) = self.state.enter(op, path).await?;
        self.state.bytes_out.fetch_add(payload.content_length() as u64, Ordering::Relaxed);
        let done = self.inner.put_opts(path, payload, options).await;
        self.state.come_back().await;
        reply(&verdict, done)
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let (verdict, _in_flight) = self.state.enter(Op::Multipart, path).await?;
        let upload = reply(&verdict, self.inner.put_multipart_opts(path, options).await)?;
        Ok(Box::new(FaultyUpload { upload, state: Arc::clone(&self.state), path: path.clone() }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let op = match (options.head, options.range.is_some()) {
            (true, _) => Op::Head,
            (false, true) => Op::GetRange,
            (false, false) => Op::Get,
        };
        let (verdict, in_flight) = self.state.enter(op, path).await?;
        if let Verdict::Fault(Fault::WrongRange) = verdict {
            return self.inner.get_opts(path, bodies::shifted(options)).await;
        }
        let done = self.inner.get_opts(path, options).await;
        self.state.come_back().await;
        let got = reply(&verdict, done)?;
        if op == Op::Head {
            return Ok(got);
        }
        self.state.bytes_in.fetch_add(got.range.end - got.range.start, Ordering::Relaxed);
        let body = match verdict {
            Verdict::Fault(Fault::SlowBody) => bodies::stuck(got).await?,
            Verdict::Fault(Fault::TruncatedBody) => bodies::truncated(got).await?,
            _ if self.state.corrupting.load(Ordering::Relaxed) => bodies::corrupted(got).await?,
            _ => got,
        };
        Ok(bodies::holding(body, in_flight))
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let (inner, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        let whole = async move {
            let paths: Vec<Path> = paths.try_collect().await?;
            let first = paths.first().cloned().unwrap_or_default();
            let (verdict, _in_flight) = state.enter(Op::Delete, &first).await?;
            let paths = stream::iter(paths.into_iter().map(Ok).collect::<Vec<_>>()).boxed();
            let done: Vec<Result<Path>> = inner.delete_stream(paths).collect().await;
            reply(&verdict, Ok(stream::iter(done)))
        };
        whole.into_stream().try_flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (inner, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        let prefix = prefix.cloned();
        let whole = async move {
            let at = prefix.clone().unwrap_or_default();
            let (verdict, _in_flight) = state.enter(Op::List, &at).await?;
            let found: Vec<ObjectMeta> = match state.lagging(prefix.as_ref()) {
                Some(found) => found,
                None => inner.list(prefix.as_ref()).try_collect().await?,
            };
            let before = state.lists.lock().insert(at.to_string(), found.clone());
            let told: Vec<Result<ObjectMeta>> = match verdict {
                Verdict::Fault(Fault::StaleList) => before.unwrap_or_default().into_iter().map(Ok).collect(),
                Verdict::Fault(Fault::ReorderedList) => {
                    let twice = found.first().cloned();
                    found.into_iter().rev().chain(twice).map(Ok).collect()
                }
                Verdict::Fault(Fault::TruncatedBody) => {
                    let half = found.len() / 2;
                    let cut = error("the list ended halfway");
                    found.into_iter().take(half).map(Ok).chain([Err(cut)]).collect()
                }
                Verdict::Fault(Fault::SlowBody) => std::future::pending().await,
                _ => found.into_iter().map(Ok).collect(),
            };
            reply(&verdict, Ok(stream::iter(told)))
        };
        whole.into_stream().try_flatten().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let at = prefix.cloned().unwrap_or_default();
        let (verdict, _in_flight) = self.state.enter(Op::List, &at).await?;
        let listed = match self.state.lagging(prefix) {
            Some(found) => Ok(delimited(prefix, found)),
            None => self.inner.list_with_delimiter(prefix).await,
        };
        let mut found = reply(&verdict, listed)?;
        let before = self.state.dirs.lock().insert(at.to_string(), found.common_prefixes.clone());
        match verdict {
            Verdict::Fault(Fault::StaleList) => found.common_prefixes = before.unwrap_or_default(),
            Verdict::Fault(Fault::ReorderedList) => found.common_prefixes.reverse(),
            Verdict::Fault(Fault::SlowBody) => std::future::pending().await,
            Verdict::Fault(Fault::TruncatedBody) => return Err(error("the list ended halfway")),
            _ => {}
        }
        Ok(found)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}

#[derive(Debug)]
struct FaultyUpload {
    upload: Box<dyn MultipartUpload>,
    state: Arc<State>,
    path: Path,
}

#[async_trait]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (state, path) = (Arc::clone(&self.state), self.path.clone());
        let len = data.content_length() as u64;
        let sent = self.upload.put_part(data);
        async move {
            let (verdict, _in_flight) = state.enter(Op::Multipart, &path).await?;
            state.bytes_out.fetch_add(len, Ordering::Relaxed);
            reply(&verdict, sent.await)
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (verdict, _in_flight) = self.state.enter(Op::Multipart, &self.path).await?;
        reply(&verdict, self.upload.complete().await)
    }

    async fn abort(&mut self) -> Result<()> {
        self.upload.abort().await
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("State")
    }
}

impl fmt::Debug for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.inner)
    }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultyStore({})", self.inner)
    }
}
