//! Clients of the page service.

use std::time::Duration;

use bytes::Bytes;
use engine::tenant::timeline::Timeline;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::reltag::SlruKind;
use pageserver_client::{PageServer, PageStream};
use pq_proto::stream::BoxStream;
use simulated::random::Random;
use utils::lsn::Lsn;

use crate::origin::segment;
use crate::postgres::pages;
use crate::reader::Subject;
use crate::story::violation;

/// Longer than this no client waits for a connection, or for an answer.
const PATIENCE: Duration = Duration::from_secs(120);

impl Subject {
    /// Asks the page service for pages as of `count` moments, some of which are yet to come.
    pub async fn ask_some(self, stream: BoxStream, timeline: Timeline, count: u64, mut random: Random) {
        let Some(mut pages) = self.open(stream, &timeline).await else { return };
        for _ in 0..count {
            let moments = self.origin.all_moments(self.origin.last());
            let lsn = moments[random.below(moments.len() as u64) as usize];
            let wanted = self.something(lsn, &mut random);
            if !self.ask(&mut pages, &timeline, lsn, wanted, false).await {
                return;
            }
        }
    }

    /// Asks once over a connection that is not lost, of a server that nothing ails.
    pub async fn ask_last(&self, stream: BoxStream, timeline: &Timeline) {
        let id = timeline.timeline_id();
        let Some(mut pages) = self.open(stream, timeline).await else {
            violation!(self.story, "{}: nobody answers for {id}, and nothing fails", self.server);
            return;
        };
        let lsn = timeline.last_record_lsn();
        let wanted = self.something(lsn, &mut Random::new(lsn.0));
        if !self.ask(&mut pages, timeline, lsn, wanted, true).await {
            violation!(self.story, "{}: a connection for {id} was lost, and nothing fails", self.server);
        }
    }

    async fn open(&self, stream: BoxStream, timeline: &Timeline) -> Option<PageStream> {
        let (tenant, id) = (timeline.tenant_shard_id().tenant_id, timeline.timeline_id());
        let server = PageServer::new("host=simulated user=reader", None).ok()?;
        let opened = server.pagestream_over(stream, ProtocolVersion::V3, tenant, id);
        env::clock::timeout(PATIENCE, opened).await.ok()?.ok()
    }

    /// A page of a table, if there are any, or the commit log; and what it is.
    fn something(&self, lsn: Lsn, random: &mut Random) -> (Query, Option<Bytes>) {
        let whole = Query::GetSlruSegment { kind: SlruKind::Clog, segno: 0 };
        let blocks = self.origin.ask(|model| pages(model, lsn)).into_iter();
        let blocks: Vec<_> = blocks.filter_map(|(key, page)| Some((key.to_rel_block()?, page))).collect();
        let at = random.below(blocks.len() as u64 + 1) as usize;
        match blocks.into_iter().nth(at) {
            Some(((rel, number), page)) => (Query::GetPage(rel, number), Some(page)),
            None => (whole, self.origin.ask(|model| segment(model, lsn))),
        }
    }

    /// False if the connection is of no use any more.
    async fn ask(
        &self,
        pages: &mut PageStream,
        timeline: &Timeline,
        lsn: Lsn,
        (query, expected): (Query, Option<Bytes>),
        is_calm: bool,
    ) -> bool {
        let header = RequestHeader { reqid: lsn.0, request_lsn: lsn, not_modified_since: lsn };
        let request = Request { header, query };
        let asked = self.asked(timeline, lsn, is_calm);
        let Ok(Ok(answer)) = env::clock::timeout(PATIENCE, pages.request(&request)).await else { return false };
        let asked = self.still(asked, timeline, lsn);
        let (id, server) = (timeline.timeline_id(), self.server);
        match (answer, expected) {
            (Answer::SlruSegment(bytes) | Answer::Page(bytes), Some(expected)) if bytes == expected => {}
            (Answer::SlruSegment(bytes) | Answer::Page(bytes), expected) => {
                let (is, was) = (bytes.len(), expected.map(|bytes| bytes.len()));
                violation!(self.story, "{server}: {query:?} of {id} at {lsn} is wrong: {is} bytes, not {was:?}");
            }
            // There is no commit log yet.
            (Answer::Error(_), None) => {}
            (Answer::Error(text), Some(_)) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                if let Some(why) = self.why_refused(&text, &asked) {
                    violation!(self.story, "{server}: {query:?} of {id} at {lsn}: {text}; but {why}");
                }
            }
            (other, _) => violation!(self.story, "{server}: {other:?} to {query:?} of {id} at {lsn}"),
        }
        true
    }
}
