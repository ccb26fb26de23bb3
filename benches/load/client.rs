//! The client: connections on one thread, each with some requests in flight.

use std::collections::VecDeque;
use std::future::Future;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;
use hdrhistogram::Histogram;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::reltag::RelTag;
use pageserver_client::PageServer;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::artifact::{Unit, Validity};
use crate::server::{ANSWER, Contents, REL, REQUEST};
use crate::zipf::{Zipf, mixed};

const WARM_UP: Duration = Duration::from_secs(1);
/// Of `/proc/PID/stat`, in Linux on all machines that this runs on.
const TICKS_PER_SECOND: f64 = 100.0;

/// Whom to ask.
pub struct Target {
    pub server: PageServer,
    pub ids: (TenantId, TimelineId),
    pub last: Lsn,
    /// The port of the echo.
    pub echo: u16,
    pub pid: u32,
    /// Number of pages, a power of two.
    pub pages: u32,
    pub contents: Contents,
}

/// How many ask, and how many requests each has in flight.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub connections: usize,
    pub depth: usize,
}

/// What was measured after the warm-up.
pub struct Found {
    pub answers: u64,
    /// In nanoseconds.
    pub times: Histogram<u64>,
    pub validity: Validity,
    pub seconds: f64,
    /// Seconds of processor time.
    pub client_cpu: f64,
    pub server_cpu: f64,
    pub server_rss_mib: u64,
}

/// What one connection counts, from `from` to `end`.
struct Part {
    from: Instant,
    end: Instant,
    times: Histogram<u64>,
    validity: Validity,
}

impl Part {
    fn note(&mut self, asked: Instant, now: Instant) {
        if asked >= self.from && now < self.end {
            self.times.saturating_record((now - asked).as_nanos() as u64);
        }
    }
}

/// Of nanoseconds, up to a minute.
fn histogram() -> anyhow::Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}

/// What is asked for, and what the answer must be.
#[derive(Clone, Copy)]
pub enum Form<'a> {
    /// Random pages, by Zipf's law or uniformly.
    Pages(Option<&'a Zipf>),
    /// Whether a relation is there, that is or is not.
    Exists(bool),
    /// The number of blocks of the relation.
    RelationSize,
    /// The size of its database, which has nothing else.
    DatabaseSize,
}

impl Form<'_> {
    /// A request, and the block that it asks for, if it is for a page.
    fn query(self, chance: u64, pages: u32) -> (Query, u32) {
        match self {
            Form::Pages(zipf) => {
                let block = zipf.map_or(chance as u32 & (pages - 1), |zipf| zipf.draw(chance));
                (Query::GetPage(REL, block), block)
            }
            Form::Exists(true) => (Query::Exists(REL), 0),
            // Another one each time: nothing may be remembered of it.
            Form::Exists(false) => (Query::Exists(RelTag { relnode: 1 << 30 | chance as u32 >> 2, ..REL }), 0),
            Form::RelationSize => (Query::Nblocks(REL), 0),
            Form::DatabaseSize => (Query::DbSize { dbnode: REL.dbnode }, 0),
        }
    }

    /// Whether `answer` is right; `None` if it is another kind of answer.
    fn is_right(self, answer: &Answer<Bytes>, block: u32, target: &Target) -> Option<bool> {
        match (self, answer) {
            (Form::Pages(_), Answer::Page(page)) => Some(target.contents.is_page(block, page)),
            (Form::Exists(there), Answer::Exists(found)) => Some(there == *found),
            (Form::RelationSize, Answer::Nblocks(blocks)) => Some(*blocks == target.pages),
            (Form::DatabaseSize, Answer::DbSize(bytes)) => Some(*bytes == i64::from(target.pages) * 8192),
            _ => None,
        }
    }
}

/// Requests of one form.
pub async fn requests(target: &Target, form: Form<'_>, load: Load, span: Duration) -> anyhow::Result<Found> {
    measured(target, load, span, |number, part| ask(target, form, (number, load.depth), part)).await
}

/// Exchanges of as many bytes with one who does nothing.
pub async fn echo(target: &Target, load: Load, span: Duration) -> anyhow::Result<Found> {
    measured(target, load, span, |_, part| exchange(target.echo, part)).await
}

async fn measured<F: Future<Output = anyhow::Result<Part>>>(
    target: &Target,
    load: Load,
    span: Duration,
    connection: impl Fn(u64, Part) -> F,
) -> anyhow::Result<Found> {
    let from = Instant::now() + WARM_UP;
    let end = from + span;
    let mut parts = Vec::new();
    for number in 0..load.connections as u64 {
        let part = Part { from, end, times: histogram()?, validity: Validity::of(Unit::Pages) };
        parts.push(connection(number, part));
    }
    let usage = async {
        let taken = || anyhow::Ok((cpu_seconds("self")?, cpu_seconds(&target.pid.to_string())?));
        tokio::time::sleep_until(from.into()).await;
        let before = taken()?;
        tokio::time::sleep_until(end.into()).await;
        let after = taken()?;
        anyhow::Ok((after.0 - before.0, after.1 - before.1))
    };
    let (parts, (client_cpu, server_cpu)) = tokio::try_join!(try_join_all(parts), usage)?;
    let (mut times, mut validity) = (histogram()?, Validity::of(Unit::Pages));
    for part in parts {
        times.add(part.times)?;
        validity.add(part.validity);
    }
    let (answers, server_rss_mib) = (times.len(), rss_mib(target.pid));
    Ok(Found { answers, times, validity, seconds: span.as_secs_f64(), client_cpu, server_cpu, server_rss_mib })
}

/// One connection that asks.
async fn ask(target: &Target, form: Form<'_>, (number, depth): (u64, usize), mut part: Part) -> anyhow::Result<Part> {
    let (tenant, timeline) = target.ids;
    let stream = target.server.pagestream(ProtocolVersion::V3, tenant, timeline).await?;
    let (mut sender, mut receiver) = stream.split();
    let mut under_way: VecDeque<(u32, Instant)> = VecDeque::new();
    let mut id = number << 32;
    while Instant::now() < part.end {
        while under_way.len() < depth {
            id += 1;
            let (query, block) = form.query(mixed(id), target.pages);
            let header = RequestHeader { reqid: id, request_lsn: Lsn::MAX, not_modified_since: target.last };
            sender.queue(&Request { header, query });
            under_way.push_back((block, Instant::now()));
        }
        sender.flush().await?;
        // Refill half a window at a time, as a prefetching client does.
        while under_way.len() > depth / 2 {
            let response = receiver.receive().await?;
            let now = Instant::now();
            let Some((block, asked)) = under_way.pop_front() else { anyhow::bail!("an answer too many") };
            let right = form.is_right(&response.answer, block, target);
            part.validity.compare(right.ok_or_else(|| anyhow::anyhow!("an answer to nothing asked"))?);
            part.note(asked, now);
        }
    }
    sender.close().await;
    Ok(part)
}

/// One connection that exchanges bytes.
async fn exchange(port: u16, mut part: Part) -> anyhow::Result<Part> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    stream.set_nodelay(true)?;
    let (request, mut answer) = ([3; REQUEST], vec![0; ANSWER]);
    while Instant::now() < part.end {
        let asked = Instant::now();
        stream.write_all(&request).await?;
        stream.read_exact(&mut answer).await?;
        part.note(asked, Instant::now());
    }
    Ok(part)
}

/// Processor time of a process in seconds, user and system.
fn cpu_seconds(pid: &str) -> anyhow::Result<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks: f64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum();
    Ok(ticks / TICKS_PER_SECOND)
}

fn rss_mib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) / 1024
}
