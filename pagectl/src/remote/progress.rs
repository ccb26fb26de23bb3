//! Shows how far a request is that takes long: a bar on a terminal, lines elsewhere, nothing with `--json`.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use anyhow::anyhow;
use indicatif::ProgressBar;

use crate::output;

/// Interval at which it is noticed that the work has ended,
const PERIOD: Duration = Duration::from_millis(100);
/// and number of intervals after which it is shown how far it is.
const PERIODS_PER_LOOK: u32 = 5;

/// Where progress is shown.
#[derive(Debug)]
pub(super) enum Progress {
    /// Nowhere.
    Silent,
    /// On a terminal.
    Bar(ProgressBar),
    /// In lines on standard error; the last one is not repeated.
    Lines(String),
}

impl Progress {
    /// Shows progress, by `bar` if there is a terminal, unless the result is for a program.
    pub(super) fn new(json: bool, bar: impl FnOnce() -> ProgressBar) -> Self {
        match (json, io::stderr().is_terminal()) {
            (true, _) => Progress::Silent,
            (false, true) => Progress::Bar(bar()),
            (false, false) => Progress::Lines(String::new()),
        }
    }

    /// Whether nothing is shown.
    pub(super) fn is_silent(&self) -> bool {
        matches!(self, Progress::Silent)
    }

    /// Shows how far it is: `done` of `total`, and in words.
    pub(super) fn tell(&mut self, done: u64, total: u64, words: String) {
        match self {
            Progress::Silent => {}
            Progress::Bar(bar) => {
                bar.set_length(total);
                bar.set_position(done);
                bar.set_message(words);
            }
            Progress::Lines(last) if *last == words => {}
            Progress::Lines(last) => {
                output::progress(&words);
                *last = words;
            }
        }
    }

    /// Ends it.
    pub(super) fn end(self) {
        if let Progress::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Does `work` in a thread of its own, and calls `look` with the time since the start again and again until it is done.
pub(super) fn meanwhile<T: Send>(
    work: impl FnOnce() -> anyhow::Result<T> + Send,
    mut look: impl FnMut(Duration),
) -> anyhow::Result<T> {
    thread::scope(|scope| {
        let work = scope.spawn(work);
        for number in 1_u32.. {
            env::clock::pause(PERIOD);
            if work.is_finished() {
                break;
            }
            if number.is_multiple_of(PERIODS_PER_LOOK) {
                look(PERIOD * number);
            }
        }
        work.join().unwrap_or_else(|_| Err(anyhow!("the request could not be made")))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn looks_are_made_until_the_work_is_done() {
        let (tell, told) = mpsc::channel();
        let mut looks = Vec::new();
        let answer = meanwhile(
            move || Ok(told.recv()?),
            |since| {
                looks.push(since);
                if looks.len() == 2 {
                    let _ = tell.send(7);
                }
            },
        );
        assert_eq!(answer.unwrap(), 7);
        assert!(looks.len() >= 2 && looks.is_sorted(), "{looks:?}");
        let failed: anyhow::Result<()> = meanwhile(|| Err(anyhow!("refused")), |_| {});
        assert_eq!(failed.unwrap_err().to_string(), "refused");
    }

    #[test]
    fn lines_are_not_repeated() {
        let mut progress = Progress::Lines(String::new());
        progress.tell(1, 2, "half".to_owned());
        progress.tell(1, 2, "half".to_owned());
        assert!(matches!(&progress, Progress::Lines(last) if last == "half"));
        assert!(matches!(Progress::new(true, ProgressBar::hidden), Progress::Silent));
    }
}
