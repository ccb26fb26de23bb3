//! Connections that ask, all on one thread, and what their answers must be.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use bytes::Bytes;
use env::clock;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::reltag::{BlockNumber, RelTag};
use pageserver_client::PageServer;
use postgres_formats::page::{Page, PageBytes};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

const WARM_UP: Duration = Duration::from_secs(1);
/// Longest answer that is told apart from longer ones, in nanoseconds.
const LONGEST: u64 = 600_000_000_000;

/// How much is asked at once, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Load {
    pub(super) connections: usize,
    pub(super) in_flight: usize,
    /// Requests for the relation's size, of 100.
    pub(super) sizes: u8,
    pub(super) time: Duration,
}

/// Who is asked about which relation.
pub(super) struct Target {
    server: PageServer,
    ids: (TenantId, TimelineId),
    rel: RelTag,
}

/// A relation as of one LSN, or as it is now.
pub(super) struct Asked {
    target: Target,
    header: RequestHeader,
    blocks: BlockNumber,
    /// The LSN of each page when it was last seen: no answer to a later request may be older.
    seen: RefCell<Vec<u64>>,
}

/// A request in flight.
struct UnderWay {
    query: Query,
    asked: Instant,
    /// What the page must not be older than.
    at_least: u64,
}

impl Target {
    pub(super) fn new(
        page_service: &str,
        token: Option<&str>,
        ids: (TenantId, TimelineId),
        rel: RelTag,
    ) -> anyhow::Result<Self> {
        Ok(Self { server: PageServer::new(page_service, token)?, ids, rel })
    }

    /// The relation as of `lsn`; without one as it is now, which is no older than `last`.
    pub(super) async fn at(self, lsn: Option<Lsn>, last: Lsn) -> anyhow::Result<Asked> {
        let header = match lsn {
            Some(lsn) => RequestHeader { reqid: 0, request_lsn: lsn, not_modified_since: lsn },
            None => RequestHeader { reqid: 0, request_lsn: Lsn::MAX, not_modified_since: last },
        };
        let (tenant, timeline) = self.ids;
        let mut stream = self.server.pagestream(ProtocolVersion::V3, tenant, timeline).await?;
        let request = Request { header, query: Query::Nblocks(self.rel) };
        let blocks = match stream.request(&request).await.with_context(|| format!("size of {}", self.rel))? {
            Answer::Nblocks(blocks) => blocks,
            other => bail!("the server answered what was not asked: {other:?}"),
        };
        ensure!(blocks > 0, "relation {} is empty: choose one that has pages", self.rel);
        Ok(Asked { target: self, header, blocks, seen: RefCell::new(vec![0; blocks as usize]) })
    }
}

impl Asked {
    /// Times of all answers to what was asked after the warm-up, in nanoseconds.
    pub(super) async fn measure(&self, load: Load) -> anyhow::Result<Histogram<u64>> {
        let from = clock::now() + WARM_UP;
        let mut all = times()?;
        for part in try_join_all((0..load.connections).map(|_| self.ask(load, from))).await? {
            all.add(part)?;
        }
        Ok(all)
    }

    async fn ask(&self, load: Load, from: Instant) -> anyhow::Result<Histogram<u64>> {
        let (tenant, timeline) = self.target.ids;
        let stream = self.target.server.pagestream(ProtocolVersion::V3, tenant, timeline).await?;
        let (mut sender, mut receiver) = stream.split();
        let mut under_way: VecDeque<UnderWay> = VecDeque::new();
        let (mut times, end, mut reqid) = (times()?, from + load.time, 0);
        while clock::now() < end {
            while under_way.len() < load.in_flight {
                reqid += 1;
                let next = self.draw(load.sizes);
                sender.queue(&Request { header: RequestHeader { reqid, ..self.header }, query: next.query });
                under_way.push_back(next);
            }
            // Half a window is refilled at a time, as a client that prefetches does. Answers are received while
            // requests are sent, or both sides could wait for each other with full buffers.
            let answers = async {
                while under_way.len() > load.in_flight / 2 {
                    let answer = receiver.receive().await?.answer;
                    let now = clock::now();
                    let Some(asked) = under_way.pop_front() else { bail!("the server answered once too often") };
                    self.check(&asked, answer)?;
                    if asked.asked >= from && now < end {
                        times.saturating_record(now.duration_since(asked.asked).as_nanos() as u64);
                    }
                }
                Ok(())
            };
            let sent = async { anyhow::Ok(sender.flush().await?) };
            tokio::try_join!(sent, answers)?;
        }
        sender.close().await;
        Ok(times)
    }

    /// A request by chance.
    fn draw(&self, sizes: u8) -> UnderWay {
        let chance = env::random::u64();
        let asked = clock::now();
        if chance % 100 < u64::from(sizes) {
            return UnderWay { query: Query::Nblocks(self.target.rel), asked, at_least: 0 };
        }
        // The upper half, spread over all blocks.
        let block = (((chance >> 32) * u64::from(self.blocks)) >> 32) as BlockNumber;
        let at_least = self.seen.borrow().get(block as usize).copied().unwrap_or_default();
        UnderWay { query: Query::GetPage(self.target.rel, block), asked, at_least }
    }

    fn check(&self, asked: &UnderWay, answer: Answer<Bytes>) -> anyhow::Result<()> {
        match (asked.query, answer) {
            (Query::GetPage(rel, block), Answer::Page(bytes)) => {
                let page: &PageBytes = bytes.as_ref().try_into().context("an answer that is no page")?;
                let page = Page::new(page);
                if !page.is_new() {
                    page.layout().with_context(|| format!("page {block} of {rel}"))?;
                }
                let lsn = page.lsn();
                ensure!(
                    lsn >= asked.at_least,
                    "page {block} of {rel} has LSN {}, and had {} before that was asked",
                    Lsn(lsn),
                    Lsn(asked.at_least)
                );
                if let Some(seen) = self.seen.borrow_mut().get_mut(block as usize) {
                    *seen = (*seen).max(lsn);
                }
                Ok(())
            }
            (Query::Nblocks(rel), Answer::Nblocks(blocks)) => {
                ensure!(blocks >= self.blocks, "{rel} has {blocks} pages and had {}: it was truncated", self.blocks);
                Ok(())
            }
            (query, Answer::Error(message)) => bail!("{query:?}: {}", String::from_utf8_lossy(&message)),
            (query, other) => bail!("{query:?} was answered by {other:?}"),
        }
    }
}

fn times() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, LONGEST, 3)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REL: RelTag = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 };

    fn asked() -> Asked {
        let ids = (TenantId::generate(), TimelineId::generate());
        let target = Target::new("host=127.0.0.1 port=1", None, ids, REL).unwrap();
        let header = RequestHeader { reqid: 0, request_lsn: Lsn::MAX, not_modified_since: Lsn(8) };
        Asked { target, header, blocks: 4, seen: RefCell::new(vec![0; 4]) }
    }

    fn page(lsn: u64) -> Answer<Bytes> {
        let mut page = Page::new([0; postgres_formats::BLCKSZ]);
        page.init(0);
        page.set_lsn(lsn);
        Answer::Page(Bytes::copy_from_slice(page.bytes()))
    }

    fn request(query: Query, at_least: u64) -> UnderWay {
        UnderWay { query, asked: clock::now(), at_least }
    }

    #[test]
    fn a_page_may_not_be_older_than_it_was_before_it_was_asked() {
        let asked = asked();
        let of = |at_least| request(Query::GetPage(REL, 2), at_least);
        asked.check(&of(0), page(90)).unwrap();
        // Another connection's request, made before, may see what was before.
        asked.check(&of(0), page(70)).unwrap();
        assert_eq!(*asked.seen.borrow(), [0, 0, 90, 0]);
        let error = asked.check(&of(90), page(89)).unwrap_err().to_string();
        assert_eq!(error, "page 2 of 1663/5/16384 has LSN 0/59, and had 0/5A before that was asked");
    }

    #[test]
    fn what_is_no_answer_is_refused() {
        let asked = asked();
        let refused = |query, answer| format!("{:#}", asked.check(&request(query, 0), answer).unwrap_err());
        let get = Query::GetPage(REL, 0);
        assert!(refused(get, Answer::Nblocks(4)).contains("was answered by"));
        assert!(refused(get, Answer::Page(Bytes::from_static(&[1; 7]))).contains("no page"));
        let garbage = Bytes::copy_from_slice(&[255; postgres_formats::BLCKSZ]);
        assert!(refused(get, Answer::Page(garbage)).contains("page 0 of 1663/5/16384"));
        assert!(refused(get, Answer::Error(Bytes::from_static(b"gone"))).contains("gone"));
        assert!(refused(Query::Nblocks(REL), Answer::Nblocks(3)).contains("truncated"));
        asked.check(&request(Query::Nblocks(REL), 0), Answer::Nblocks(5)).unwrap();
    }

    #[test]
    fn what_is_drawn_lies_in_the_relation() {
        let asked = asked();
        for _ in 0..1000 {
            match asked.draw(30).query {
                Query::GetPage(_, block) => assert!(block < 4),
                query => assert_eq!(query, Query::Nblocks(REL)),
            }
        }
        assert!((0..100).all(|_| asked.draw(100).query == Query::Nblocks(REL)));
    }
}
