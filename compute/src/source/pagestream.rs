//! A timeline as a source: reads from its page service as of one LSN.
//!
//! All blocks of a range are requested at once on one connection; concurrent ranges have their own connections, which
//! are kept. When a connection fails it is dropped, and the range is requested again on a new one until that has
//! taken too long; the same happens when the timeline moves to another pageserver. Where there are several servers, one
//! that does not answer, or is not the owner, is left for the next one. As long as the source lives it keeps its LSN
//! leased.

mod lease;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use env::clock::timeout;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::reltag::RelTag;
use pageserver_client::{ClientError, PageReceiver, PageSender};
use parking_lot::Mutex;
use postgres_formats::page::{PageBytes, set_data_checksum};
use tokio::sync::{Semaphore, watch};

use super::servers::{Servers, is_not_owner};
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
/// The longest pause where another server may be the owner by now.
const PAUSE_BETWEEN: Duration = Duration::from_millis(200);
/// While a server is silent, the others are asked so often whether they are the owner...
const SILENCE: Duration = Duration::from_secs(1);
/// ... and have so long to say so.
const LOOK: Duration = Duration::from_secs(2);

/// A timeline as of an LSN. Cheap to clone.
#[derive(Clone)]
pub struct PagestreamSource {
    inner: Arc<Inner>,
}

struct Inner {
    servers: watch::Sender<Servers>,
    /// Held by whoever asks the others.
    looking: tokio::sync::Mutex<()>,
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
    /// Reads from the owner among `servers`. Must be called in a runtime, where a task renews the lease.
    pub fn new(servers: impl Into<Servers>, at: TimelineAt) -> Self {
        let inner = Arc::new(Inner {
            servers: watch::Sender::new(servers.into()),
            looking: tokio::sync::Mutex::default(),
            at,
            idle: Mutex::default(),
            permits: Semaphore::new(CONNECTIONS),
            next_id: AtomicU64::new(1),
        });
        let weak = Arc::downgrade(&inner);
        let go_over = move |from, to| {
            if let Some(inner) = weak.upgrade() {
                inner.go(|servers| servers.go_over(from, to));
            }
        };
        env::spawn::vital("lease of the boot LSN", lease::keep(inner.servers.subscribe(), inner.at.clone(), go_over));
        Self { inner }
    }

    /// Directs all requests to `servers` from now on, including those that another server has not answered yet.
    pub fn move_to(&self, servers: impl Into<Servers>) {
        self.inner.servers.send_replace(servers.into());
        self.inner.idle.lock().clear();
    }
}

impl PageSource for PagestreamSource {
    async fn manifest(&self) -> Result<Vec<RelationFile>, SourceError> {
        let servers = self.inner.servers();
        let mut failed = SourceError::Failed("there is no page server".to_owned());
        for (at, server) in servers.in_turn() {
            match boot::manifest(server, &self.inner.at).await {
                Ok(manifest) => {
                    self.inner.go(|servers| servers.go_over(servers.at(), at));
                    return Ok(boot::relation_files(&manifest));
                }
                Err(error) => failed = self.inner.meaning(&error.to_string()),
            }
        }
        Err(failed)
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
    fn servers(&self) -> Servers {
        self.servers.borrow().clone()
    }

    /// Asks another server from now on, if `change` says so.
    fn go(&self, change: impl FnOnce(&mut Servers) -> bool) {
        if self.servers.send_if_modified(change) {
            self.idle.lock().clear();
        }
    }

    /// Completes when another server has said that it is the owner, and is asked from now on; never if there is none.
    async fn look_elsewhere(&self) {
        let TimelineAt { tenant, timeline, .. } = self.at;
        loop {
            env::clock::sleep(SILENCE).await;
            let servers = self.servers();
            let Ok(_looking) = self.looking.try_lock() else { continue };
            for (at, server) in servers.in_turn().skip(1) {
                let asked = timeout(LOOK, server.pagestream(ProtocolVersion::V3, tenant, timeline)).await;
                if matches!(asked, Ok(Ok(_))) {
                    return self.go(|now| now.go_over(servers.at(), at));
                }
            }
        }
    }

    /// Reads blocks, retrying if necessary.
    async fn range(&self, rel: RelFork, first: u32, out: &mut [u8]) -> Result<(), SourceError> {
        let (started, mut pause) = (env::clock::now(), PAUSE_MIN);
        let _permit = self.permits.acquire().await.map_err(|error| SourceError::Failed(error.to_string()))?;
        let (mut moved, mut refusals) = (self.servers.subscribe(), 0);
        loop {
            moved.mark_unchanged();
            let (from, count) = (self.servers().at(), self.servers().count());
            let outcome = tokio::select! {
                outcome = self.attempt(rel, first, out) => outcome,
                Ok(()) = moved.changed() => continue,
                () = self.look_elsewhere(), if count > 1 => continue,
            };
            let reason = match outcome {
                Ok(()) => return Ok(()),
                // Another server may do better, once.
                Err(Fault::Refused(SourceError::Failed(reason))) if count > 1 && refusals < 2 * count => {
                    refusals += 1;
                    reason
                }
                Err(Fault::Refused(error)) => return Err(error),
                // An idle connection may have been closed meanwhile, and the others with it.
                Err(Fault::Lost { was_new: false, .. }) => {
                    self.idle.lock().clear();
                    continue;
                }
                Err(Fault::Lost { reason, was_new: true }) => reason,
            };
            if env::clock::now().saturating_duration_since(started) >= GIVE_UP {
                return Err(SourceError::Retry(format!("the page server does not answer: {reason}")));
            }
            tracing::debug!("asking again in {pause:?}: {reason}");
            if count > 1 {
                self.go(|servers| servers.go_on_from(from));
                env::clock::sleep(pause).await;
            } else {
                let _ = timeout(pause, moved.changed()).await;
            }
            pause = (pause * 2).min(if count > 1 { PAUSE_BETWEEN } else { PAUSE_MAX });
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
        let servers = self.servers();
        let none = || Fault::Refused(SourceError::Failed("there is no page server".to_owned()));
        let server = servers.current().ok_or_else(none)?;
        let stream = server.pagestream(ProtocolVersion::V3, tenant, timeline).await;
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
            Answer::Error(text) => {
                let text = String::from_utf8_lossy(text);
                return Err(match is_not_owner(&text) {
                    true => Fault::Lost { reason: text.into_owned(), was_new: true },
                    false => Fault::Refused(self.meaning(&text)),
                });
            }
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
        if self.servers().count() > 1 && text.contains("not found") {
            // This server does not know of the tenant, or not yet of the branch.
            return Fault::Lost { reason: text, was_new: true };
        }
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
        if text.contains("timed out") || text.contains("shut") || is_not_owner(text) {
            return SourceError::Retry(text.to_owned());
        }
        SourceError::Failed(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use pageserver_client::PageServer;
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
