//! What happens in a run, in readable lines, and a hash of them all: two runs of a seed must tell the same.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Whether lines are also printed as they come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Telling {
    /// They only enter the hash.
    Quiet,
    /// They go to standard output,
    Aloud,
    /// and so do all calls of disks and bucket.
    Everything,
}

/// The story of a run. Cheap to clone.
#[derive(Clone)]
pub struct Story(Arc<Inner>);

struct Inner {
    telling: Telling,
    began: Instant,
    process: String,
    told: Mutex<Told>,
}

struct Told {
    hash: DefaultHasher,
    lines: u64,
    violation: Option<String>,
}

impl Story {
    /// A story that begins now.
    pub fn begin(telling: Telling) -> Self {
        let told = Mutex::new(Told { hash: DefaultHasher::new(), lines: 0, violation: None });
        let process = format!("-{}-", std::process::id());
        Self(Arc::new(Inner { telling, began: env::clock::now(), process, told }))
    }

    /// Tells a line.
    pub fn tell(&self, line: fmt::Arguments<'_>) {
        self.line(line, self.0.telling != Telling::Quiet);
    }

    /// Tells of a call, which few want to read.
    pub fn call(&self, call: fmt::Arguments<'_>) {
        self.line(call, self.0.telling == Telling::Everything);
    }

    fn line(&self, line: fmt::Arguments<'_>, is_printed: bool) {
        let at = self.elapsed();
        let line = format!("{:>8}.{:03} {line}", at.as_secs(), at.subsec_millis());
        // Names of temporary files have the number of the real process.
        let line = if line.contains(&self.0.process) { line.replace(&self.0.process, "-N-") } else { line };
        let mut told = self.0.told.lock();
        line.hash(&mut told.hash);
        told.lines += 1;
        drop(told);
        if is_printed {
            println!("{line}");
        }
    }

    /// Tells of a broken promise; the first one is the run's result.
    pub fn violation(&self, what: fmt::Arguments<'_>) {
        self.tell(format_args!("VIOLATION: {what}"));
        self.0.told.lock().violation.get_or_insert_with(|| what.to_string());
    }

    /// The first broken promise.
    pub fn broken_promise(&self) -> Option<String> {
        self.0.told.lock().violation.clone()
    }

    /// The hash of all lines, and their number.
    pub fn hash(&self) -> (u64, u64) {
        let told = self.0.told.lock();
        (told.hash.finish(), told.lines)
    }

    /// Time since the story began.
    pub fn elapsed(&self) -> Duration {
        env::clock::now().saturating_duration_since(self.0.began)
    }
}

/// Tells a line of a [`Story`], as `println!` prints one.
macro_rules! tell {
    ($story:expr, $($line:tt)+) => { $story.tell(format_args!($($line)+)) };
}

/// Tells of a broken promise.
macro_rules! violation {
    ($story:expr, $($what:tt)+) => { $story.violation(format_args!($($what)+)) };
}

pub(crate) use {tell, violation};
