//! Removal of history keeps what must be readable, and nothing else is read.
//!
//! Set `MORE_SEEDS=20` in the environment to try that many more seeds.

use crate::sim::history::root;
use crate::sim::retention::{Tally, archive, keep_and_remove, limit, remove_beside_jobs, set_clocks};
use anyhow::Context;
use camino::Utf8PathBuf;

/// The fixed seeds, and as many more as requested.
fn seeds() -> impl Iterator<Item = u64> {
    let more = std::env::var("MORE_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    (1..9).chain(1000..1000 + more)
}

/// Runs a scenario with all seeds, in directories of this name.
fn run(name: &str, scenario: fn(&Utf8PathBuf, u64, &mut Tally) -> anyhow::Result<()>) -> anyhow::Result<()> {
    let mut tally = Tally::default();
    for seed in seeds() {
        let root = root(&format!("{name}-{seed}"));
        scenario(&root, seed, &mut tally).with_context(|| format!("seed {seed}"))?;
    }
    println!("{tally:?}");
    assert!(tally.removed > 0 && tally.refused > 0, "nothing was removed: {tally:?}");
    Ok(())
}

#[test]
fn what_is_kept_is_read_and_nothing_else() -> anyhow::Result<()> {
    run("retention", keep_and_remove)
}

#[test]
fn a_timelines_own_limits_hold_also_after_a_restart() -> anyhow::Result<()> {
    run("limits", limit)
}

#[test]
fn of_an_archived_timeline_the_end_stays_and_what_is_kept() -> anyhow::Result<()> {
    run("archived", archive)
}

#[test]
fn a_clock_that_is_set_ends_nothing_early() -> anyhow::Result<()> {
    run("clocks", set_clocks)
}

#[test]
fn jobs_and_the_removal_of_history_take_nothing_from_each_other() -> anyhow::Result<()> {
    run("beside", remove_beside_jobs)
}
