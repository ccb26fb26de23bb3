//! Gives traces to a collector: one task, which takes what has come together by the time it is ready for more.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use metrics::METRICS;
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::encode;
use crate::trace::{Span, Tracer, Value};

/// Requests that may wait to be given to the collector.
const WAITING_MAX: usize = 1024;
/// Requests that are given to it at once.
const TOGETHER_MAX: usize = 256;
/// How long others have to come along with the first.
const GATHERING: Duration = Duration::from_millis(300);
/// Time limit for the collector to take them.
const LIMIT: Duration = Duration::from_secs(5);
/// How often it is said that it does not.
const COMPLAINTS: Duration = Duration::from_secs(60);
/// Where collectors take traces, if nothing else is said.
const PATH: &str = "/v1/traces";

/// Where a collector listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Destination {
    host: String,
    authority: String,
    port: u16,
    path: String,
}

impl Destination {
    /// `http://host:port`, with a path unless that is the usual one.
    ///
    /// # Errors
    /// What is expected, if it is something else.
    pub fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("expected http://host:port, where a collector takes OTLP, not {text:?}");
        let uri: Uri = text.parse().map_err(|_| expected())?;
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http")).ok_or_else(expected)?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let path = match uri.path() {
            "" | "/" => PATH,
            path => path,
        };
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { host, authority: authority.to_string(), port, path: path.to_owned() })
    }
}

/// How a process is traced.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where traces go.
    pub to: Destination,
    /// Of so many requests without a caller's trace one is sent; of none, if 0.
    pub one_in: u64,
    /// Requests that take so long are sent anyway; zero: none.
    pub slow: Duration,
    /// What is known of this process; `service.name` at least.
    pub about: Vec<(&'static str, Value)>,
}

/// The tracer, and the work of sending what it hands over.
pub(crate) fn begin(options: Options) -> (Tracer, impl Future<Output = ()> + Send + 'static) {
    let (queue, waiting) = mpsc::channel(WAITING_MAX);
    let Options { to, one_in, slow, about } = options;
    (Tracer { one_in, slow, queue }, export(to, about, waiting))
}

async fn export(to: Destination, about: Vec<(&'static str, Value)>, mut waiting: mpsc::Receiver<Vec<Span>>) {
    let mut together = Vec::new();
    let mut complained: Option<Instant> = None;
    while waiting.recv_many(&mut together, TOGETHER_MAX).await > 0 {
        env::clock::sleep(GATHERING).await;
        while together.len() < TOGETHER_MAX {
            let Ok(more) = waiting.try_recv() else { break };
            together.push(more);
        }
        let spans: Vec<Span> = together.drain(..).flatten().collect();
        let count = spans.len() as u64;
        let given = env::clock::timeout(LIMIT, give(&to, encode::request(&about, spans))).await;
        let Err(reason) = given.unwrap_or_else(|_| Err(format!("no answer within {LIMIT:?}"))) else {
            METRICS.traces_sent_spans.inc_by(count);
            continue;
        };
        METRICS.traces_lost_spans.inc_by(count);
        let now = env::clock::now();
        if complained.is_none_or(|at| now.saturating_duration_since(at) >= COMPLAINTS) {
            complained = Some(now);
            tracing::info!("traces are lost: the collector at {} does not take them: {reason}", to.authority);
        }
    }
}

/// One attempt: what is not taken is lost.
async fn give(to: &Destination, body: Vec<u8>) -> Result<(), String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let stream = TcpStream::connect((to.host.as_str(), to.port)).await.map_err(|error| text(&error))?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| text(&error))?;
    let request = Request::post(&to.path)
        .header(HOST, &to.authority)
        .header(CONTENT_TYPE, "application/x-protobuf")
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| text(&error))?;
    // It ends with the sender, and no sooner than the answer is taken from it.
    let asking = async move {
        let answer = sender.send_request(request).await.map_err(|error| text(&error))?;
        if answer.status().is_success() { Ok(()) } else { Err(format!("it answers {}", answer.status())) }
    };
    let (answered, _) = tokio::join!(asking, connection);
    answered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Kind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn options(port: u16) -> Options {
        let to = Destination::parse(&format!("http://127.0.0.1:{port}")).unwrap();
        Options { to, one_in: 1, slow: Duration::ZERO, about: vec![("service.name", "test".into())] }
    }

    #[test]
    fn where_a_collector_is() {
        let told = Destination::parse("http://collector:4318").unwrap();
        assert_eq!((told.host.as_str(), told.port, told.path.as_str()), ("collector", 4318, PATH));
        let told = Destination::parse("http://[::1]:1/otlp/traces").unwrap();
        assert_eq!((told.host.as_str(), told.port, told.path.as_str()), ("::1", 1, "/otlp/traces"));
        for bad in ["", "collector:4318", "https://collector:4318", "http://", "x y"] {
            assert!(Destination::parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_collector_gets_spans() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (tracer, exporting) = begin(options(listener.local_addr().unwrap().port()));
        let exporting = tokio::spawn(exporting);
        tracer.begin(None).end("a request", Kind::Server, Vec::new(), None);
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut seen = Vec::new();
        while !seen.windows(9).any(|window| window == b"a request") {
            stream.read_buf(&mut seen).await.unwrap();
        }
        assert!(seen.starts_with(b"POST /v1/traces HTTP/1.1\r\n"));
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        drop((stream, tracer));
        exporting.await.unwrap();
        assert!(METRICS.traces_sent_spans.get() > 0, "also of a collector that hangs up after its answer");
    }

    #[tokio::test]
    async fn a_collector_that_is_away_loses_what_is_for_it() {
        let before = METRICS.traces_lost_spans.get();
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let (tracer, exporting) = begin(options(gone));
        let exporting = tokio::spawn(exporting);
        tracer.begin(None).end("a request", Kind::Server, Vec::new(), None);
        drop(tracer);
        exporting.await.unwrap();
        assert!(METRICS.traces_lost_spans.get() > before);
    }
}
