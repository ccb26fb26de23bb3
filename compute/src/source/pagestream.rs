//! A timeline as a source: reads from its page service as of one LSN.
//!
//! All blocks of a range are requested at once on one connection; concurrent ranges have their own connections, which
//! are kept. When a connection fails it is dropped, and the range is requested again on a new one until that has
//! taken too long; the same happens when the timeline moves to another pageserver. As long as the source lives it
//! keeps its LSN leased.

mod lease;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use env::clock::timeout;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::reltag::RelTag;
use pageserver_client::{ClientError, PageReceiver, PageSender, PageServer};
use parking_lot::Mutex;
use postgres_formats::page::{PageBytes, set_data_checksum};
use tokio::sync::{Semaphore, watch};

pub use super::timeline_at::TimelineAt;
use super::{PageSource, RelFork, RelationFile, SourceError};
use crate::{BLOCK, boot};

/// Maximum number of concurrent ranges.
const CONNECTIONS: usize = 32;
/// Blocks per range: 1 MiB.
const BLOCKS_AT_ONCE: u32 = 128;
/// Time limit for one range on one connection.
const EXCHANGE: Duration = Duration::from_secs(20);
/// After this time without an answer the caller gets an error.
const GIVE_UP: Duration = Duration::from_secs(30);
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A timeline as of an LSN. Cheap to clone.
#[derive(Clone)]
pub struct PagestreamSource {
    inner: Arc<Inner>,
}

struct Inner {
    server: watch::Sender<PageServer>,
    at: TimelineAt,
    idle: Mutex<Vec<Stream>>,
    permits: Semaphore,
    next_id: AtomicU64,
}

type Stream = (PageSender, PageReceiver);

/// Why a range was not read.
enum Fault {
    /// The connection is unusable.
    Lost { reason: String, was_new: bool },
    /// The page service refused.
    Refused(SourceError),
}

impl PagestreamSource {
    /// Reads from `server`. Must be called in a runtime, where a task renews the lease.
    pub fn new(server: PageServer, at: TimelineAt) -> Self {
        let inner = Arc::new(Inner {
            server: watch::Sender::new(server),
            at,
            idle: Mutex::default(),
            permits: Semaphore::new(CONNECTIONS),
            next_id: AtomicU64::new(1),
        });
        env::spawn::vital("lease of the boot LSN", lease::keep(inner.server.subscribe(), inner.at.clone()));
        Self { inner }
    }

    /// Directs all requests to `server` from now on, including those that another server has not answered yet.
    pub fn move_to(&self, server: PageServer) {
        self.inner.server.send_replace(server);
        self.inner.idle.lock().clear();
    }
}

impl PageSource for PagestreamSource {
    async fn manifest(&self) -> Result<Vec<RelationFile>, SourceError> {
        let (server, at) = (self.inner.server(), &self.inner.at);
        let manifest = boot::manifest(&server, at).await.map_err(|error| self.inner.meaning(&error.to_string()))?;
        Ok(boot::relation_files(&manifest))
    }

    async fn read_blocks(&self, rel: RelFork, first: u32, count: u32, out: &mut [u8]) -> Result<(), SourceError> {
        if out.len() != count as usize * BLOCK {
            return Err(SourceError::Failed(format!("{} bytes for {count} blocks", out.len())));
        }
        let mut next = first;
        for range in out.chunks_mut(BLOCKS_AT_ONCE as usize * BLOCK) {
            self.inner.range(rel, next, range).await?;
            next = next.saturating_add(BLOCKS_AT_ONCE);
        }
        Ok(())
    }
}

impl Inner {
    fn server(&self) -> PageServer {
        self.server.borrow().clone()
    }

    /// Reads blocks, retrying if necessary.
    async fn range(&self, rel: RelFork, first: u32, out: &mut [u8]) -> Result<(), SourceError> {
        let (started, mut pause) = (env::clock::now(), PAUSE_MIN);
        let _permit = self.permits.acquire().await.map_err(|error| SourceError::Failed(error.to_string()))?;
        let mut moved = self.server.subscribe();
        loop {
            moved.mark_unchanged();
            let outcome = tokio::select! {
                outcome = self.attempt(rel, first, out) => outcome,
                Ok(()) = moved.changed() => continue,
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(Fault::Refused(error)) => return Err(error),
                // An idle connection may have been closed meanwhile, and the others with it.
                Err(Fault::Lost { was_new: false, .. }) => self.idle.lock().clear(),
                Err(Fault::Lost { reason, was_new: true }) => {
                    if env::clock::now().saturating_duration_since(started) >= GIVE_UP {
                        return Err(SourceError::Retry(format!("the page server does not answer: {reason}")));
                    }
                    tracing::debug!("asking again in {pause:?}: {reason}");
                    let _ = timeout(pause, moved.changed()).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
            }
        }
    }

    /// Cancelling this drops the connection.
    async fn attempt(&self, rel: RelFork, first: u32, out: &mut [u8]) -> Result<(), Fault> {
        let kept = self.idle.lock().pop();
        let was_new = kept.is_none();
        let exchange = async {
            let mut stream = match kept {
                Some(stream) => stream,
                None => self.connect().await?,
            };
            self.exchange(&mut stream, rel, first, out).await?;
            Ok(stream)
        };
        match timeout(EXCHANGE, exchange).await {
            Ok(Ok(stream)) => {
                self.idle.lock().push(stream);
                Ok(())
            }
            Ok(Err(Fault::Lost { reason, .. })) => Err(Fault::Lost { reason, was_new }),
            Ok(Err(refused)) => Err(refused),
            Err(_) => Err(Fault::Lost { reason: format!("no answer within {EXCHANGE:?}"), was_new }),
        }
    }

    async fn connect(&self) -> Result<Stream, Fault> {
        let TimelineAt { tenant, timeline, .. } = self.at;
        let stream = self.server().pagestream(ProtocolVersion::V3, tenant, timeline).await;
        Ok(stream.map_err(|error| self.fault(error))?.split())
    }

    /// Sends all requests, then receives all answers.
    async fn exchange(
        &self,
        (sender, receiver): &mut Stream,
        rel: RelFork,
        first: u32,
        out: &mut [u8],
    ) -> Result<(), Fault> {
        let requests: Vec<Request> =
            (first..).zip(out.chunks(BLOCK)).map(|(block, _)| self.request(rel, block)).collect();
        requests.iter().for_each(|request| sender.queue(request));
        sender.flush().await.map_err(|error| self.fault(error))?;
        for ((block, page), request) in (first..).zip(out.chunks_mut(BLOCK)).zip(&requests) {
            let answer = receiver.receive_for(request).await.map_err(|error| self.fault(error))?;
            self.take(answer, block, page)?;
        }
        Ok(())
    }

    fn request(&self, rel: RelFork, block: u32) -> Request {
        let RelFork { spc, db, rel, fork } = rel;
        let rel = RelTag { spcnode: spc, dbnode: db, relnode: rel, forknum: fork };
        let reqid = self.next_id.fetch_add(1, Ordering::Relaxed);
        let header = RequestHeader { reqid, request_lsn: self.at.lsn, not_modified_since: self.at.lsn };
        Request { header, query: Query::GetPage(rel, block) }
    }

    fn take(&self, answer: Answer<Bytes>, block: u32, out: &mut [u8]) -> Result<(), Fault> {
        let page = match &answer {
            Answer::Page(page) => <PageBytes>::try_from(&page[..]).ok(),
            Answer::Error(text) => return Err(Fault::Refused(self.meaning(&String::from_utf8_lossy(text)))),
            _ => None,
        };
        let (Some(mut page), Ok(out)) = (page, <&mut PageBytes>::try_from(out)) else {
            return Err(Fault::Refused(SourceError::Failed(format!("block {block}: the answer is no page"))));
        };
        if self.at.data_checksums {
            set_data_checksum(&mut page, block);
        }
        *out = page;
        Ok(())
    }

    fn fault(&self, error: ClientError) -> Fault {
        let text = error.to_string();
        match self.meaning(&text) {
            gone @ SourceError::Gone(_) => Fault::Refused(gone),
            _ if matches!(error, ClientError::Authentication(_) | ClientError::Config(_)) => {
                Fault::Refused(SourceError::Failed(text))
            }
            _ => Fault::Lost { reason: text, was_new: true },
        }
    }

    /// Maps an error of the page service to its meaning for a compute.
    fn meaning(&self, text: &str) -> SourceError {
        let TimelineAt { timeline, lsn, .. } = &self.at;
        if text.contains("not readable") || text.contains("garbage collected") {
            return SourceError::Gone(format!(
                "{text}: what this compute was started from is gone. A lease of LSN {lsn} on timeline {timeline}, \
                 renewed all the time, would have kept it; the compute renews its own as long as its file system runs"
            ));
        }
        if text.contains(&format!("timeline {timeline}")) && text.contains("not found") {
            return SourceError::Gone(format!("{text}: the branch that this compute was started from is deleted"));
        }
        if text.contains("timed out") || text.contains("shut") {
            return SourceError::Retry(text.to_owned());
        }
        SourceError::Failed(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use utils::id::{TenantId, TimelineId};
    use utils::lsn::Lsn;

    use super::*;

    #[tokio::test]
    async fn an_lsn_that_is_gone_is_told_from_what_comes_back() {
        let at = TimelineAt {
            tenant: TenantId::generate(),
            timeline: TimelineId::generate(),
            lsn: Lsn(0x1234_5678),
            data_checksums: false,
        };
        let server = PageServer::new("host=127.0.0.1 port=1 user=none", None).unwrap();
        let source = PagestreamSource::new(server, at.clone());
        let collected = "tried to request a page version that was garbage collected. requested at 0/12345678";
        let SourceError::Gone(said) = source.inner.meaning(collected) else { panic!("it does not come back") };
        assert!(said.starts_with(collected), "{said}");
        let lease = format!("A lease of LSN 0/12345678 on timeline {}", at.timeline);
        assert!(said.contains(&lease) && said.contains("would have kept it"), "{said}");
        let deleted = format!("timeline {} was not found", at.timeline);
        assert!(matches!(source.inner.meaning(&deleted), SourceError::Gone(said) if said.contains("deleted")));
        let late = "timed out while waiting for LSN 0/2";
        assert_eq!(source.inner.meaning(late), SourceError::Retry(late.into()));
    }
}
