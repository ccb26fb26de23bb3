//! In what share of random histories each job runs: the tests that draw them are worth no more than that.

use crate::sim::history::{History, Ops, Script, root};
use anyhow::Context;
use virtual_file::{FatalAction, set_fatal_action};

const SEEDS: u64 = 100;

/// A job, how often a history had it, and how many histories of a hundred have it at least.
type Job = (&'static str, fn(&Ops) -> u64, usize);

const JOBS: [Job; 8] = [
    ("sort", |ops| ops.sorts, 95),
    ("merge", |ops| ops.merges, 45),
    ("image", |ops| ops.images, 40),
    ("fold", |ops| ops.folds, 25),
    ("trim", |ops| ops.trims, 35),
    ("removal of history", |ops| ops.removed, 60),
    ("hold", |ops| ops.holds, 80),
    ("restart", |ops| ops.restarts, 90),
];

#[test]
fn most_histories_have_each_job() -> anyhow::Result<()> {
    set_fatal_action(FatalAction::Report);
    let mut found = Vec::new();
    for seed in 1..=SEEDS {
        let root = root(&format!("shares-{seed}"));
        // Both policies of `stack::config`: images early, and merges.
        let checkpoint_distance = 30_000 + seed % 2;
        let script = Script { root, seed, ops: 120, checkpoint_distance, restarts: true, retries: false };
        found.push(History::record(script).with_context(|| format!("seed {seed}"))?.ops);
    }
    let shares = JOBS.map(|(name, count, least)| (name, found.iter().filter(|ops| count(ops) > 0).count(), least));
    shares.iter().for_each(|(name, share, _)| println!("{name}: in {share} of {SEEDS} histories"));
    let rare: Vec<_> = shares.iter().filter(|(_, share, least)| share < least).collect();
    assert!(rare.is_empty(), "too few to test them (job, histories of {SEEDS}, asked): {rare:?}");
    Ok(())
}
