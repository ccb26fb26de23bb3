//! Traces of requests, as OpenTelemetry has them: what a request was part of, what it did, and how long each part took.
//!
//! They are off unless the process has called [`start`]: then [`begin`] is one load and one branch, and returns nothing
//! that anything would be noted in. Where they are on, a request notes its parts in a buffer of its own. Only at its
//! end it is decided whether that is sent: if it was drawn, if its caller's trace is, or if it was slow. So what is
//! slow is seen however few are drawn. What is sent waits in a bounded queue for one task that gives it to a collector;
//! if that is away, or too slow, traces are lost and counted, and nothing waits (decision 0036).
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod encode;
mod export;
mod parent;
mod trace;

use std::sync::OnceLock;

pub use export::{Destination, Options};
pub use parent::Parent;
pub use trace::{Kind, Trace, Value};

use trace::Tracer;

static TRACER: OnceLock<Tracer> = OnceLock::new();

/// Begins the trace of a request, which may be part of that of its caller. `None` where traces are off.
#[inline]
pub fn begin(parent: Option<Parent>) -> Option<Trace> {
    TRACER.get().map(|tracer| tracer.begin(parent))
}

/// Whether traces are on.
#[inline]
pub fn is_on() -> bool {
    TRACER.get().is_some()
}

/// Has traces sent from now on; must be called in a runtime. Only the first call of a process counts.
pub fn start(options: Options) {
    let (tracer, exporting) = export::begin(options);
    if TRACER.set(tracer).is_ok() {
        drop(env::spawn::task("traces", exporting));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing in this program calls `start`.
    #[test]
    fn where_traces_are_off_nothing_is_made() {
        let parent = Parent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01");
        assert!(parent.is_some());
        let made = allocation_counter::measure(|| {
            for _ in 0..1000 {
                assert!(begin(parent).is_none() && begin(None).is_none() && !is_on());
            }
        });
        assert_eq!(made.count_total, 0);
        // What is passed along with each request then is a null pointer.
        assert_eq!(size_of::<Option<Trace>>(), size_of::<usize>());
    }
}
