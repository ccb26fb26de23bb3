//! A stream of page requests, answered in order.

use std::time::{Duration, Instant};

use pageserver_api::pagestream::{ProtocolVersion, Query, Request};
use pq_proto::backend::put;
use pq_proto::server::{Connection, ConnectionError, ServerWriter};

use super::batch::{Batches, Work};
use super::errors::CommandError;
use super::pages::Reader;
use super::reading::Read;
use super::serve::{self, Served};
use super::session::Session;
use super::trace;
use errors::StorageError;
use metrics::{METRICS, SmgrQuery, seconds_since};

/// Buffer space for the answer with a page: headers and page.
const PAGE_ANSWER: usize = 8192 + 64;

/// Serves the stream until the client leaves.
pub(super) async fn serve(
    session: &Session<'_>,
    connection: &mut Connection,
    read: Read,
    version: ProtocolVersion,
) -> Result<(), CommandError> {
    put::copy_both(connection.writer().buffer());
    connection.writer().flush().await?;
    let gone = read.timeline().cancelled();
    let streaming = answer_all(session, connection, &read, version);
    tokio::select! {
        biased;
        end = session.must_end() => Err(end),
        () = gone.cancelled() => Err(CommandError::shutdown()),
        done = streaming => done,
    }
}

async fn answer_all(
    session: &Session<'_>,
    connection: &mut Connection,
    read: &Read,
    version: ProtocolVersion,
) -> Result<(), CommandError> {
    let settings = &session.shared.settings;
    let conf = session.shared.manager.conf();
    let max_size = settings.max_batch_size.min(conf.max_get_vectored_keys.get());
    let mut batches = Batches::new(version, max_size);
    let reader = Reader::new(read.timeline().clone(), &session.shared.sizes, conf.wait_lsn_timeout);
    let caller = trace::caller(connection.startup());
    let (input, output) = connection.split();
    loop {
        let next = env::clock::timeout(settings.idle_timeout, batches.next(input)).await;
        match next.map_err(|_| ConnectionError::Timeout("waiting for a request"))?? {
            Work::End => return Ok(()),
            Work::Other(request) => {
                let started = begin(&request, 1);
                let trace = traces::begin(caller);
                let served = serve::other(&reader, &request).await;
                METRICS.smgr_query_seconds.of(kind(&request)).observe(seconds_since(started));
                trace::end(trace, &reader, &request, 1, served.as_ref().err());
                if read.has_ended(read.removed(served.as_ref().err())).await {
                    return Err(CommandError::shutdown());
                }
                send(output, version, &request, session.number, served)?;
            }
            Work::Pages(requests) => {
                let Some(first) = requests.first() else { continue };
                let started = begin(first, requests.len());
                METRICS.page_service_batch_size.observe(requests.len() as f64);
                let trace = traces::begin(caller);
                let pages = reader.pages(&requests, trace.as_ref()).await;
                let (seconds, histogram) = (seconds_since(started), METRICS.smgr_query_seconds.of(kind(first)));
                requests.iter().for_each(|_| histogram.observe(seconds));
                trace::end(trace, &reader, first, requests.len(), pages.iter().find_map(|page| page.as_ref().err()));
                let removed = read.removed(pages.iter().filter_map(|page| page.as_ref().err()));
                if read.has_ended(removed).await {
                    return Err(CommandError::shutdown());
                }
                output.buffer().reserve(requests.len() * PAGE_ANSWER);
                for (request, page) in requests.iter().zip(pages) {
                    send(output, version, request, session.number, serve::page(page))?;
                }
            }
        }
        flush(output, settings.idle_timeout).await?;
    }
}

/// Counts the start of requests of one kind.
fn begin(request: &Request, count: usize) -> Instant {
    METRICS.smgr_query_started.of(kind(request)).inc_by(count as u64);
    env::clock::now()
}

fn kind(request: &Request) -> SmgrQuery {
    match request.query {
        Query::Exists(_) => SmgrQuery::GetRelExists,
        Query::Nblocks(_) => SmgrQuery::GetRelSize,
        Query::GetPage(..) => SmgrQuery::GetPageAtLsn,
        Query::DbSize { .. } => SmgrQuery::GetDbSize,
        Query::GetSlruSegment { .. } => SmgrQuery::GetSlruSegment,
    }
}

/// Puts an answer into the buffer. Errors are answers too, except a shutdown of the timeline.
fn send(
    output: &mut ServerWriter,
    version: ProtocolVersion,
    request: &Request,
    client: u64,
    served: Served,
) -> Result<(), CommandError> {
    let answer = match served {
        Ok(answer) => answer,
        Err(StorageError::Shutdown) => return Err(CommandError::shutdown()),
        Err(error) => serve::error_answer(request, client, &error),
    };
    put::copy_data(output.buffer(), |buf| answer.encode(version, request, buf));
    Ok(())
}

/// A client that does not take its answers blocks them, and is disconnected after the time limit.
async fn flush(output: &mut ServerWriter, limit: Duration) -> Result<(), CommandError> {
    let sent = env::clock::timeout(limit, output.flush()).await;
    Ok(sent.map_err(|_| ConnectionError::Timeout("sending answers"))??)
}
