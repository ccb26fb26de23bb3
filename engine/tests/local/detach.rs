//! A branch that is detached from its ancestor reads as before from its beginning on, whatever interrupts that, and
//! needs nothing of the ancestor afterwards.
//!
//! Set `MORE_SEEDS=20` in the environment to try that many more seeds.

use crate::sim::detach::{Tally, crash_while_detaching, detach_and_forget};
use crate::sim::history::root;
use anyhow::Context;
use virtual_file::{FatalAction, set_fatal_action};

/// The fixed seeds, and as many more as requested.
fn seeds() -> impl Iterator<Item = u64> {
    let more = std::env::var("MORE_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    (1..5).chain(1000..1000 + more)
}

#[test]
fn a_detached_branch_needs_nothing_of_its_ancestor() -> anyhow::Result<()> {
    let mut tally = Tally::default();
    for seed in seeds() {
        let root = root(&format!("detach-{seed}"));
        detach_and_forget(&root, seed, &mut tally).with_context(|| format!("seed {seed}"))?;
    }
    println!("{tally:?}");
    Ok(())
}

#[test]
fn a_crash_leaves_a_branch_that_works() -> anyhow::Result<()> {
    set_fatal_action(FatalAction::Report);
    let mut tally = Tally::default();
    for seed in seeds().take(2) {
        crash_while_detaching(&root(&format!("detach-crash-{seed}")), seed, &mut tally)?;
    }
    println!("{tally:?}");
    assert!(tally.attached > 0 && tally.detached > 0, "{tally:?}");
    Ok(())
}
