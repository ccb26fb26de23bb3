//! What a quorum of an owner and a standby has acknowledged survives the loss of one of them together with the
//! Postgres; and mistakes in that are found.

use fault::{Bug, plant};
use sim::quorum::{run, run_to_the_tail};
use sim::run::prepare;
use sim::story::Telling;

/// The first seed in which something is wrong, and what.
fn look(seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
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
    if let Some((seed, reason)) = look(first..first + count) {
        run(seed, Telling::Aloud);
        panic!("seed {seed}: {reason}");
    }
    for bug in [Bug::ForgetAtTakeover, Bug::StandbyLeavesGap] {
        plant(&[bug]);
        let outcome = look(1..number("QUORUM_BUG_SEEDS", 400));
        plant(&[]);
        let (seed, reason) = outcome.unwrap_or_else(|| panic!("{bug:?} was missed"));
        println!("{bug:?}: seed {seed}: {reason}");
    }
}

/// `TAIL_SEEDS` says how many.
#[test]
fn what_was_committed_some_seconds_before_survives_the_loss_of_all_disks() {
    prepare();
    for seed in 1..=number("TAIL_SEEDS", 40) {
        if let Some(reason) = run_to_the_tail(seed, Telling::Quiet).violation {
            run_to_the_tail(seed, Telling::Aloud);
            panic!("seed {seed}: {reason}");
        }
    }
}
