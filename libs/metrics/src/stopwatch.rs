//! Says on what a task spends its time: a task is in one stage at a time, and the time goes to the stage that it
//! leaves.
//!
//! Entering a stage costs one reading of the clock and one addition, so a batch may enter some, and a value none.

use std::sync::atomic::AtomicU64;
use std::time::Instant;

use prometheus_client::metrics::counter::Counter;

use super::label::{ByLabel, LabelEnum};

type Seconds<L> = ByLabel<L, Counter<f64, AtomicU64>>;

/// See the module's documentation. A stopwatch that is dropped, even with a future that is not polled again, adds the
/// time until then.
#[derive(Debug)]
pub struct Stopwatch<L: LabelEnum> {
    seconds: Option<&'static Seconds<L>>,
    running: Option<(L, Instant)>,
}

impl<L: LabelEnum> Stopwatch<L> {
    /// One that adds to `seconds`. It is not in any stage yet.
    pub fn of(seconds: &'static Seconds<L>) -> Self {
        Self { seconds: Some(seconds), running: None }
    }

    /// One that measures nothing and costs nothing, for callers that are not to be counted.
    pub fn off() -> Self {
        Self { seconds: None, running: None }
    }

    /// Begins with `stage`.
    pub fn at(mut self, stage: L) -> Self {
        self.enter(stage);
        self
    }

    /// From now on time goes to `stage`. Costs next to nothing if it does already.
    #[inline]
    pub fn enter(&mut self, stage: L) {
        if self.seconds.is_some() && self.running.is_none_or(|(now, _)| now != stage) {
            self.switch(Some(stage));
        }
    }

    /// Stops, while somebody else measures; returns the stage for [`Stopwatch::resume`].
    pub fn pause(&mut self) -> Option<L> {
        let stage = self.running.map(|(stage, _)| stage);
        if stage.is_some() {
            self.switch(None);
        }
        stage
    }

    /// Goes on in the stage at which it was paused.
    pub fn resume(&mut self, stage: Option<L>) {
        if let Some(stage) = stage {
            self.enter(stage);
        }
    }

    fn switch(&mut self, next: Option<L>) {
        let Some(seconds) = self.seconds else { return };
        let now = env::clock::now();
        if let Some((stage, since)) = self.running.take() {
            seconds.of(stage).inc_by(now.saturating_duration_since(since).as_secs_f64());
        }
        self.running = next.map(|stage| (stage, now));
    }
}

impl<L: LabelEnum> Drop for Stopwatch<L> {
    fn drop(&mut self) {
        self.pause();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::label::CompactionJob::{self, Fold, Image, Merge, Sort};
    use super::*;

    fn spend(seconds: u64) {
        env::clock::advance_thread(Duration::from_secs(seconds));
    }

    #[test]
    fn all_time_goes_to_the_stage_that_it_was_spent_in() {
        env::clock::freeze_thread();
        let seconds: &'static Seconds<CompactionJob> = Box::leak(Box::new(ByLabel::seconds()));
        let mut watch = Stopwatch::of(seconds);
        spend(100);
        watch.enter(Sort);
        spend(1);
        watch.enter(Sort);
        spend(1);
        watch.enter(Merge);
        spend(3);
        let paused = watch.pause();
        spend(100);
        watch.resume(paused);
        spend(4);
        watch.enter(Image);
        spend(5);
        drop(watch);
        spend(100);
        let found = [Sort, Merge, Image, Fold].map(|stage| seconds.of(stage).get());
        assert_eq!(found, [2.0, 7.0, 5.0, 0.0]);
        env::clock::thaw_thread();
    }

    #[test]
    fn one_that_is_off_measures_nothing() {
        let mut watch = Stopwatch::off().at(Sort);
        watch.enter(Merge);
        assert_eq!(watch.pause(), None);
        watch.resume(None);
    }
}
