//! Runs many plans, each in a process of its own: what a run depends on besides its seed, such as counters of a
//! process, is then the same each time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use parking_lot::Mutex;

use crate::kind::Kind;
use crate::plan::Plan;
use crate::run::Outcome;
use crate::tally::{Tally, millis};

/// What precedes an outcome in a process's output.
const MARK: &str = "outcome ";

/// How to run a plan in another process.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// The program `sim`.
    pub program: PathBuf,
    /// What lives in the worlds.
    pub kind: Kind,
    /// The bug to be planted there.
    pub bug: Option<String>,
}

/// What came of many seeds.
#[derive(Debug, Default)]
pub struct Sum {
    /// What they have done.
    pub tally: Tally,
    /// The lowest seed that failed, and what came of it.
    pub failure: Option<(u64, String)>,
}

impl Outcome {
    /// For another process, with what was reached in this one.
    pub fn line(&self, reached: &BTreeSet<String>) -> String {
        let ((hash, lines), millis) = (self.hash, self.elapsed.as_millis());
        let violation = self.violation.as_deref().unwrap_or("").replace('\n', " ");
        let reached: Vec<&str> = reached.iter().map(String::as_str).collect();
        format!("{MARK}{hash} {lines} {millis} {} {violation}", reached.join(","))
    }

    fn parse(output: &str) -> anyhow::Result<(Self, BTreeSet<String>)> {
        let line = output.lines().rev().find_map(|line| line.strip_prefix(MARK)).context("no outcome")?;
        let mut fields = line.splitn(5, ' ');
        let mut number = || fields.next().context("a field is missing")?.parse::<u64>().context("not a number");
        let (hash, elapsed) = ((number()?, number()?), Duration::from_millis(number()?));
        let reached = fields.next().context("a field is missing")?.split(',').map(str::to_owned).collect();
        let violation = fields.next().filter(|text| !text.is_empty()).map(str::to_owned);
        Ok((Self { hash, violation, elapsed }, reached))
    }
}

impl Fleet {
    /// Runs a plan in a process of its own.
    ///
    /// # Errors
    /// If the process does not say what came of it.
    pub fn run(&self, plan: &Plan) -> anyhow::Result<Outcome> {
        self.run_and_look(plan).map(|(outcome, _)| outcome)
    }

    /// As [`Fleet::run`], with what was reached.
    fn run_and_look(&self, plan: &Plan) -> anyhow::Result<(Outcome, BTreeSet<String>)> {
        let steps: Vec<String> = plan.steps.iter().map(|step| step.number.to_string()).collect();
        let mut command = Command::new(&self.program);
        command.arg(plan.seed.to_string()).arg("--report").arg(format!("--world={}", self.kind.name()));
        if self.kind == Kind::Tenants {
            command.arg(format!("--steps={}", steps.join(",")));
        }
        // Memory that stays is cheaper for a short life: it need not be mapped again.
        for name in ["MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"] {
            command.env(name, (1 << 30).to_string());
        }
        command.args(self.bug.iter().flat_map(|bug| ["--bug", bug]));
        let output = command.output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Outcome::parse(&text)
            .with_context(|| format!("{}: {text}{}", output.status, String::from_utf8_lossy(&output.stderr)))
    }

    /// Runs seeds from `first` on in `jobs` processes at once, each twice if `twice`, until one fails.
    pub fn run_all(&self, first: u64, count: u64, jobs: usize, twice: bool) -> Sum {
        let tally = Tally::new(self.kind, first);
        let (next, sum) = (AtomicU64::new(0), Mutex::new(Sum { tally, failure: None }));
        let began = env::clock::now();
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| {
                    while let Some(seed) = take(&next, first, count, &sum) {
                        let plan = self.kind.plan(seed);
                        let result = self.judge(&plan, twice);
                        let mut sum = sum.lock();
                        match result {
                            Ok((outcome, reached)) => sum.tally.add(&plan, outcome.elapsed, &reached),
                            Err(error) if sum.failure.as_ref().is_none_or(|(other, _)| seed < *other) => {
                                sum.failure = Some((seed, format!("{error:#}")));
                            }
                            Err(_) => {}
                        }
                    }
                });
            }
        });
        let mut sum = sum.into_inner();
        sum.tally.real_ms = millis(env::clock::now().saturating_duration_since(began));
        sum
    }

    fn judge(&self, plan: &Plan, twice: bool) -> anyhow::Result<(Outcome, BTreeSet<String>)> {
        let (outcome, reached) = self.run_and_look(plan)?;
        if let Some(violation) = outcome.violation {
            anyhow::bail!("{violation}");
        }
        if twice {
            let again = self.run(plan)?;
            ensure!(again == outcome, "two runs differ: {outcome:?}, {again:?}");
        }
        Ok((outcome, reached))
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
            let reached = BTreeSet::from(["a_total".to_owned(), "b_total{kind=\"sort\"}".to_owned()]);
            let line = format!("before\n{}\n", outcome.line(&reached));
            assert_eq!(Outcome::parse(&line).unwrap(), (outcome, reached));
        }
        assert!(Outcome::parse("nothing").is_err());
    }
}
