//! The trace of one request, while it runs.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use metrics::METRICS;
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::parent::Parent;

/// Parts of a request that are noted; more are left out.
const PARTS_MAX: usize = 64;

/// What is known of something with a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text.
    Text(String),
    /// A number.
    Number(i64),
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Value::Text(text)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Value::Text(text.to_owned())
    }
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Value::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

/// What a span is to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something that this process does for itself.
    Internal,
    /// An answer to somebody.
    Server,
}

/// A part of a request, or all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    pub(crate) parent_id: Option<u64>,
    pub(crate) name: String,
    pub(crate) kind: Kind,
    pub(crate) start: SystemTime,
    pub(crate) took: Duration,
    pub(crate) attributes: Vec<(&'static str, Value)>,
    pub(crate) error: Option<String>,
}

/// Decides what is sent, and hands it over.
#[derive(Clone, Debug)]
pub(crate) struct Tracer {
    /// Of so many requests without a caller's trace one is drawn; of none, if 0.
    pub(crate) one_in: u64,
    /// Those that take so long are sent anyway; zero: none.
    pub(crate) slow: Duration,
    pub(crate) queue: mpsc::Sender<Vec<Span>>,
}

impl Tracer {
    pub(crate) fn begin(&self, parent: Option<Parent>) -> Trace {
        let is_sampled = match parent {
            Some(parent) => parent.is_sampled,
            None => self.one_in > 0 && env::random::u64().is_multiple_of(self.one_in),
        };
        let fresh = || (u128::from(env::random::u64()) << 64) | u128::from(id());
        Trace(Arc::new(Inner {
            tracer: self.clone(),
            trace_id: parent.map_or_else(fresh, |parent| parent.trace_id),
            span_id: id(),
            parent_id: parent.map(|parent| parent.span_id),
            is_sampled,
            began: env::clock::now(),
            began_at: env::clock::system_now(),
            parts: Mutex::default(),
        }))
    }

    /// Never waits: what has no room in the queue is lost.
    fn send(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self.queue.try_send(spans).is_err() {
            METRICS.traces_lost_spans.inc_by(count);
        }
    }
}

/// An id that is not zero, which would be none.
fn id() -> u64 {
    env::random::u64().max(1)
}

/// The trace of a request. Cheap to clone. Nothing is sent unless it is ended.
#[derive(Clone, Debug)]
pub struct Trace(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tracer: Tracer,
    trace_id: u128,
    span_id: u64,
    parent_id: Option<u64>,
    is_sampled: bool,
    began: Instant,
    began_at: SystemTime,
    parts: Mutex<Vec<Span>>,
}

impl Trace {
    /// What others are told who do a part of this request.
    pub fn as_parent(&self) -> Parent {
        Parent { trace_id: self.0.trace_id, span_id: self.0.span_id, is_sampled: self.0.is_sampled }
    }

    /// Its id, by which log lines can be found.
    pub fn id(&self) -> String {
        format!("{:032x}", self.0.trace_id)
    }

    /// Notes a part of the request, which began at `start`. Returns it, so that its own parts can be noted.
    pub fn part(
        &self,
        of: Option<Part>,
        name: &'static str,
        start: Instant,
        took: Duration,
        attributes: Vec<(&'static str, Value)>,
    ) -> Part {
        let Inner { trace_id, span_id, began, began_at, parts, .. } = &*self.0;
        let part = Part(id());
        let span = Span {
            trace_id: *trace_id,
            span_id: part.0,
            parent_id: Some(of.map_or(*span_id, |part| part.0)),
            name: name.to_owned(),
            kind: Kind::Internal,
            start: *began_at + start.saturating_duration_since(*began),
            took,
            attributes,
            error: None,
        };
        let mut parts = parts.lock();
        if parts.len() < PARTS_MAX {
            parts.push(span);
        }
        part
    }

    /// The request has ended, with an error or without. It is sent if it was drawn, or was slow.
    pub fn end(self, name: &str, kind: Kind, attributes: Vec<(&'static str, Value)>, error: Option<String>) {
        let Inner { tracer, trace_id, span_id, parent_id, is_sampled, began, began_at, parts } = &*self.0;
        let took = env::clock::now().saturating_duration_since(*began);
        let is_slow = !tracer.slow.is_zero() && took >= tracer.slow;
        if !is_sampled && !is_slow {
            return;
        }
        let mut spans = std::mem::take(&mut *parts.lock());
        spans.push(Span {
            trace_id: *trace_id,
            span_id: *span_id,
            parent_id: *parent_id,
            name: name.to_owned(),
            kind,
            start: *began_at,
            took,
            attributes,
            error,
        });
        tracer.send(spans);
    }
}

/// A part of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part(u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn tracer(one_in: u64, slow: Duration, room: usize) -> (Tracer, mpsc::Receiver<Vec<Span>>) {
        let (queue, sent) = mpsc::channel(room);
        (Tracer { one_in, slow, queue }, sent)
    }

    fn end(trace: Trace) {
        trace.end("request", Kind::Server, Vec::new(), None);
    }

    #[test]
    fn parts_belong_to_their_request_and_that_to_its_caller() {
        let (tracer, mut sent) = tracer(0, Duration::ZERO, 8);
        let parent = Parent { trace_id: 7, span_id: 9, is_sampled: true };
        let trace = tracer.begin(Some(parent));
        let told = trace.as_parent();
        let read = trace.part(None, "read", env::clock::now(), Duration::from_millis(2), vec![("keys", 3_u64.into())]);
        trace.part(Some(read), "redo", env::clock::now(), Duration::from_millis(1), Vec::new());
        trace.end("request", Kind::Server, vec![("tenant", "t".into())], Some("late".to_owned()));
        let spans = sent.try_recv().unwrap();
        let [read, redo, request] = &spans[..] else { panic!("{spans:?}") };
        assert!(spans.iter().all(|span| span.trace_id == 7));
        assert_eq!((request.parent_id, request.span_id), (Some(9), told.span_id));
        assert_eq!((read.parent_id, redo.parent_id), (Some(request.span_id), Some(read.span_id)));
        assert!(read.start >= request.start && request.took >= Duration::ZERO);
        assert_eq!((told.trace_id, told.is_sampled), (7, true));
    }

    #[test]
    fn what_is_drawn_or_slow_is_sent() {
        let (all, mut sent) = tracer(1, Duration::ZERO, 8);
        end(all.begin(None));
        assert!(sent.try_recv().is_ok());
        let (none, mut sent) = tracer(0, Duration::ZERO, 8);
        end(none.begin(None));
        end(none.begin(Some(Parent { trace_id: 7, span_id: 9, is_sampled: false })));
        assert!(sent.try_recv().is_err());
        let (slow, mut sent) = tracer(0, Duration::from_millis(5), 8);
        end(slow.begin(None));
        assert!(sent.try_recv().is_err());
        let trace = slow.begin(None);
        env::clock::pause(Duration::from_millis(6));
        end(trace);
        assert!(sent.try_recv().is_ok());
        let (some, mut sent) = tracer(4, Duration::ZERO, 1000);
        (0..1000).for_each(|_| end(some.begin(None)));
        let drawn = std::iter::from_fn(|| sent.try_recv().ok()).count();
        assert!((150..350).contains(&drawn), "{drawn}");
    }

    #[test]
    fn a_full_queue_loses_traces_and_keeps_nobody() {
        let (tracer, mut sent) = tracer(1, Duration::ZERO, 2);
        let before = METRICS.traces_lost_spans.get();
        (0..5).for_each(|_| end(tracer.begin(None)));
        assert!(METRICS.traces_lost_spans.get() >= before + 3);
        assert_eq!(std::iter::from_fn(|| sent.try_recv().ok()).count(), 2);
    }

    #[test]
    fn parts_have_a_limit() {
        let (tracer, mut sent) = tracer(1, Duration::ZERO, 2);
        let trace = tracer.begin(None);
        for _ in 0..1000 {
            trace.part(None, "part", env::clock::now(), Duration::ZERO, Vec::new());
        }
        end(trace);
        assert_eq!(sent.try_recv().unwrap().len(), PARTS_MAX + 1);
    }
}
