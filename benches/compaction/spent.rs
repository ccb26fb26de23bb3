//! On what a read spends its time: on a processor, in the queue for one, or on neither, which is waiting for the disk
//! and for other tasks.

use std::cell::{Cell, RefCell};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::pin::pin;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Of so many reads one is among the slowest.
const SLOWEST: usize = 100;

thread_local! {
    static SCHEDSTAT: RefCell<Option<File>> = RefCell::new(File::open("/proc/thread-self/schedstat").ok());
    /// How long this thread had been queued when it last ended a poll.
    static QUEUED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// How long this thread was ready to run and had no processor, as the kernel counts it; always zero if it does not.
fn queued() -> Duration {
    let mut text = [0; 96];
    let length = SCHEDSTAT.with_borrow(|file| file.as_ref().and_then(|file| file.read_at(&mut text, 0).ok()));
    let text = str::from_utf8(&text[..length.unwrap_or(0)]).unwrap_or_default();
    let nanos = text.split_ascii_whitespace().nth(1).and_then(|field| field.parse().ok());
    Duration::from_nanos(nanos.unwrap_or(0))
}

/// The time of one read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spent {
    /// From its begin to its end.
    pub took: Duration,
    running: Duration,
    queued: Duration,
}

/// What `work` brings, and on what it spent its time. Of the time in a queue that counts which its threads spent there
/// while they worked on it, and right before they went on with it.
pub async fn observed<T>(work: impl Future<Output = T>) -> (T, Spent) {
    let (mut work, mut spent, began) = (pin!(work), Spent::default(), Instant::now());
    QUEUED.set(queued());
    let found = std::future::poll_fn(|context| {
        let (began, before) = (Instant::now(), queued());
        let polled = work.as_mut().poll(context);
        let (polling, after) = (began.elapsed(), queued());
        spent.running += polling.saturating_sub(after.saturating_sub(before));
        spent.queued += after.saturating_sub(QUEUED.replace(after));
        polled
    })
    .await;
    spent.took = began.elapsed();
    (found, spent)
}

/// The means of the slowest hundredth, in microseconds; `null` if there were not that many reads.
pub fn slowest(reads: &mut [Spent]) -> Value {
    let count = reads.len() / SLOWEST;
    if count == 0 {
        return Value::Null;
    }
    reads.sort_unstable_by_key(|read| std::cmp::Reverse(read.took));
    let mean = |part: fn(&Spent) -> Duration| {
        let sum: Duration = reads[..count].iter().map(part).sum();
        sum.as_secs_f64() * 1e6 / count as f64
    };
    let (took, running, queued) = (mean(|read| read.took), mean(|read| read.running), mean(|read| read.queued));
    json!({ "reads": count, "took_us": took, "running_us": running, "queued_us": queued,
        "else_us": (took - running - queued).max(0.0) })
}
