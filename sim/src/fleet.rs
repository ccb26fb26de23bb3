//! Runs many plans, each in a process of its own: what a run depends on besides its seed, such as counters of a
//! process, is then the same each time.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use parking_lot::Mutex;

use crate::plan::Plan;
use crate::run::Outcome;

/// What precedes an outcome in a process's output.
const MARK: &str = "outcome ";

/// How to run a plan in another process.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The program `sim`.
    pub program: PathBuf,
    /// The bug to be planted there.
    pub bug: Option<String>,
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Sum {
    /// How many were run.
    pub seeds: u64,
    /// How much time went by in them.
    pub elapsed: Duration,
    /// The lowest seed that failed, and what came of it.
    pub failure: Option<(u64, String)>,
}

impl Outcome {
    /// For another process.
    pub fn line(&self) -> String {
        let ((hash, lines), millis) = (self.hash, self.elapsed.as_millis());
        let violation = self.violation.as_deref().unwrap_or("").replace('\n', " ");
        format!("{MARK}{hash} {lines} {millis} {violation}")
    }

    fn parse(output: &str) -> anyhow::Result<Self> {
        let line = output.lines().rev().find_map(|line| line.strip_prefix(MARK)).context("no outcome")?;
        let mut fields = line.splitn(4, ' ');
        let mut number = || fields.next().context("a field is missing")?.parse::<u64>().context("not a number");
        let (hash, elapsed) = ((number()?, number()?), Duration::from_millis(number()?));
        let violation = fields.next().filter(|text| !text.is_empty()).map(str::to_owned);
        Ok(Self { hash, violation, elapsed })
    }
}

impl Fleet {
    /// Runs a plan in a process of its own.
    pub fn run(&self, plan: &Plan) -> anyhow::Result<Outcome> {
        let steps: Vec<String> = plan.steps.iter().map(|step| step.number.to_string()).collect();
        let mut command = Command::new(&self.program);
        command.arg(plan.seed.to_string()).arg("--report").arg(format!("--steps={}", steps.join(",")));
        command.args(self.bug.iter().flat_map(|bug| ["--bug", bug]));
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Outcome::parse(&text)
            .with_context(|| format!("{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }

    /// Runs seeds from `first` on in `jobs` processes at once, each twice if `twice`, until one fails. `tell` is told
    /// how many have ended.
    pub fn run_all(&self, first: u64, count: u64, jobs: usize, twice: bool, tell: &(dyn Fn(u64) + Sync)) -> Sum {
        let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum::default()));
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some(seed) = take(&next, first, count, &sum) {
                        let result = self.judge(&Plan::draw(seed), twice);
                        let mut sum = sum.lock();
                        sum.seeds += 1;
                        tell(sum.seeds);
                        match result {
                            Ok(elapsed) => sum.elapsed += elapsed,
                            Err(error) if sum.failure.as_ref().is_none_or(|(other, _)| seed < *other) => {
                                sum.failure = Some((seed, format!("{error:#}")));
                            }
                            Err(_) => {}
                        }
                    }
                });
            }
        });
        sum.into_inner()
    }

    fn judge(&self, plan: &Plan, twice: bool) -> anyhow::Result<Duration> {
        let outcome = self.run(plan)?;
        if let Some(violation) = outcome.violation {
            anyhow::bail!("{violation}");
        }
        if twice {
            let again = self.run(plan)?;
            ensure!(again == outcome, "two runs differ: {outcome:?}, {again:?}");
        }
        Ok(outcome.elapsed)
    }
}

fn take(next: &AtomicU64, first: u64, count: u64, sum: &Mutex<Sum>) -> Option<u64> {
    let number = next.fetch_add(1, Ordering::Relaxed);
    (number < count && sum.lock().failure.is_none()).then(|| first.saturating_add(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_read_as_it_was_written() {
        for violation in [None, Some("it is lost".to_owned())] {
            let outcome = Outcome { hash: (7, 3), violation, elapsed: Duration::from_millis(1500) };
            assert_eq!(Outcome::parse(&format!("before\n{}\n", outcome.line())).unwrap(), outcome);
        }
        assert!(Outcome::parse("nothing").is_err());
    }
}
