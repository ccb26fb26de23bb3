//! What many seeds have done and reached, in a file from which a run goes on that was stopped.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::kind::Kind;
use crate::plan::Plan;

/// The counters of the servers that have moved in this process, by their names without the common beginning.
///
/// # Errors
/// If they cannot be written as text.
pub fn reached() -> anyhow::Result<BTreeSet<String>> {
    let text = metrics::METRICS.scrape(&Default::default(), metrics::Exposition::OpenMetrics)?;
    let moved = text.lines().filter_map(|line| {
        let (name, value) = line.rsplit_once(' ')?;
        let name = name.strip_prefix("pageserver_")?;
        let is_counter = name.ends_with("_total") || name.contains("_total{");
        (is_counter && value.parse::<f64>().is_ok_and(|value| value > 0.0)).then(|| name.replace([' ', ','], "_"))
    });
    Ok(moved.collect())
}

/// See the module's documentation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tally {
    /// What lives in the worlds.
    #[serde(default)]
    pub world: String,
    /// The first seed.
    pub first: u64,
    /// How many have ended, without a gap.
    pub seeds: u64,
    /// Milliseconds that all runs took together, on the clock of those who wait for them,
    pub real_ms: u64,
    /// and in the simulation.
    pub virtual_ms: u64,
    /// For each kind of step: in how many seeds it occurs, and how often.
    pub acts: BTreeMap<String, (u64, u64)>,
    /// For each counter of the servers: in how many seeds it has moved.
    pub reached: BTreeMap<String, u64>,
}

impl Tally {
    /// Adds a run.
    pub fn add(&mut self, plan: &Plan, elapsed: Duration, reached: &BTreeSet<String>) {
        let mut one = Self { seeds: 1, virtual_ms: millis(elapsed), ..Self::default() };
        for step in &plan.steps {
            let (seeds, times) = one.acts.entry(format!("{:?}", step.act)).or_default();
            (*seeds, *times) = (1, *times + 1);
        }
        one.reached = reached.iter().map(|name| (name.clone(), 1)).collect();
        self.join(one);
    }

    /// Adds what other seeds have done, those that follow its own.
    pub fn join(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.real_ms += other.real_ms;
        self.virtual_ms += other.virtual_ms;
        for (act, (seeds, times)) in other.acts {
            let (all_seeds, all) = self.acts.entry(act).or_default();
            (*all_seeds, *all) = (*all_seeds + seeds, *all + times);
        }
        other.reached.into_iter().for_each(|(name, seeds)| *self.reached.entry(name).or_default() += seeds);
    }

    /// One of no seed so far.
    pub fn new(kind: Kind, first: u64) -> Self {
        Self { world: kind.name(), first, ..Self::default() }
    }

    /// As it was stored at `path`, for worlds of seeds from `first` on; an empty one if there is none.
    ///
    /// # Errors
    /// If the file cannot be read, or is one of other worlds.
    pub fn load(path: &Path, kind: Kind, first: u64) -> anyhow::Result<Self> {
        let empty = Self::new(kind, first);
        if !path.exists() {
            return Ok(empty);
        }
        let found: Self = serde_json::from_slice(&fs::read(path)?).with_context(|| path.display().to_string())?;
        ensure!(
            (&found.world, found.first) == (&empty.world, first),
            "{} is of {:?} from {} on, not of {:?} from {first}: remove it, or name another file",
            path.display(),
            found.world,
            found.first,
            empty.world
        );
        Ok(found)
    }

    /// Stores it in place of what is at `path`.
    ///
    /// # Errors
    /// Those of the file system.
    #[allow(clippy::disallowed_methods, reason = "this disk is real")]
    pub fn store(&self, path: &Path) -> anyhow::Result<()> {
        let new = path.with_extension("new");
        fs::write(&new, serde_json::to_vec_pretty(self)?).with_context(|| new.display().to_string())?;
        fs::rename(&new, path).with_context(|| path.display().to_string())
    }
}

/// `duration` in milliseconds.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// As a table in Markdown.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |seeds: u64| 100.0 * seeds as f64 / self.seeds.max(1) as f64;
        let (seconds, days) = (self.real_ms as f64 / 1000.0, self.virtual_ms as f64 / 86_400_000.0);
        let per_second = self.seeds as f64 / seconds.max(0.001);
        let Self { seeds, world, first, .. } = self;
        writeln!(f, "{seeds} seeds of {world} from {first} on, {per_second:.1} a second, {days:.1} virtual days")?;
        if !self.acts.is_empty() {
            writeln!(f, "\n| step | seeds with it, % | times |\n|---|---|---|")?;
        }
        for (act, (seeds, times)) in &self.acts {
            writeln!(f, "| {act} | {:.0} | {times} |", share(*seeds))?;
        }
        writeln!(f, "\n| counter that moved | seeds, % |\n|---|---|")?;
        self.reached.iter().try_for_each(|(name, seeds)| writeln!(f, "| `{name}` | {:.1} |", share(*seeds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_goes_on_where_it_was_stopped() {
        let path = std::env::temp_dir().join(format!("tally-{}.json", std::process::id()));
        let kind = Kind::Tenants;
        assert_eq!(Tally::load(&path, kind, 7).unwrap(), Tally::new(kind, 7));
        let (mut tally, mut more) = (Tally::new(kind, 7), Tally::default());
        tally.add(&Plan::draw(7), Duration::from_secs(60), &BTreeSet::from(["a_total".to_owned()]));
        more.add(&Plan::draw(8), Duration::from_secs(30), &BTreeSet::from(["a_total".to_owned(), "b".to_owned()]));
        tally.join(more);
        tally.store(&path).unwrap();
        assert_eq!(Tally::load(&path, kind, 7).unwrap(), tally);
        assert!(Tally::load(&path, kind, 8).unwrap_err().to_string().contains("\"tenants\" from 7 on"));
        assert!(Tally::load(&path, Kind::Quorum, 7).unwrap_err().to_string().contains("not of \"quorum\" from 7"));
        fs::remove_file(&path).unwrap();
        assert_eq!((tally.seeds, tally.virtual_ms), (2, 90_000));
        assert_eq!(tally.reached, BTreeMap::from([("a_total".to_owned(), 2), ("b".to_owned(), 1)]));
        let steps: usize = [7, 8].map(|seed| Plan::draw(seed).steps.len()).iter().sum();
        assert_eq!(tally.acts.values().map(|(_, times)| *times).sum::<u64>(), steps as u64);
        let text = tally.to_string();
        assert!(text.starts_with("2 seeds of tenants from 7 on") && text.contains("| `b` | 50.0 |"), "{text}");
    }
}
