//! What a quorum of an owner and a standby has acknowledged survives the loss of one of them together with the
//! Postgres; what the tail in the bucket has survives the loss of all; and mistakes in that are found.

use fault::{Bug, plant};
use sim::quorum::{run, run_after_a_takeover, run_on_a_slow_disk, run_to_the_tail};
use sim::run::{Outcome, prepare};
use sim::story::Telling;

type World = fn(u64, Telling) -> Outcome;

/// The first seed in which something is wrong, and what.
fn look(run: World, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| Some((seed, run(seed, Telling::Quiet).violation?)))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}")))
}

/// `QUORUM_SEEDS` says how many, `QUORUM_FIRST_SEED` from which one on.
#[test]
fn what_a_quorum_has_acknowledged_is_there_and_mistakes_in_that_are_found() {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    prepare();
    let (first, count) = (number("QUORUM_FIRST_SEED", 1), number("QUORUM_SEEDS", 60));
    // One after the other: simulated disks are known by their paths, which are drawn.
    for run in [run as World, run_on_a_slow_disk, run_after_a_takeover, run_to_the_tail] {
        if let Some((seed, reason)) = look(run, first..first + count) {
            run(seed, Telling::Aloud);
            panic!("seed {seed}: {reason}");
        }
    }
    let planted: [(Bug, World); 6] = [
        (Bug::ForgetAtTakeover, run),
        (Bug::ForgetWhenSteppingDown, run_after_a_takeover),
        (Bug::ReplayOtherWriter, run_after_a_takeover),
        (Bug::StandbyLeavesGap, run),
        (Bug::StandbyBeforeSync, run_on_a_slow_disk),
        (Bug::TailLeavesGap, run_to_the_tail),
    ];
    for (bug, run) in planted {
        plant(&[bug]);
        let outcome = look(run, 1..number("QUORUM_BUG_SEEDS", 400));
        plant(&[]);
        let (seed, reason) = outcome.unwrap_or_else(|| panic!("{bug:?} was missed"));
        println!("{bug:?}: seed {seed}: {reason}");
    }
}
