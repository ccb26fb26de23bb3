//! A tenant that is handed over has one owner, whoever fails in the midst of it, and all that was acknowledged; and
//! mistakes in that are found.

use fault::{Bug, plant};
use sim::run::{Outcome, prepare};
use sim::story::Telling;
use sim::{quorum, succession};

type World = fn(u64, Telling) -> Outcome;

/// The first seed in which something is wrong, and what.
fn look(world: World, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| Some((seed, world(seed, Telling::Quiet).violation?)))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}")))
}

/// Nothing is wrong in these worlds, and tenants were handed over in them.
fn check(world: World, first: u64, count: u64) {
    let before = metrics::METRICS.handovers.get();
    if let Some((seed, reason)) = look(world, first..first + count) {
        world(seed, Telling::Aloud);
        panic!("seed {seed}: {reason}");
    }
    let handovers = metrics::METRICS.handovers.get() - before;
    println!("{handovers} handovers in {count} worlds");
    assert!(handovers * 4 > count, "{handovers} handovers in {count} worlds");
}

/// `HANDOVER_SEEDS` says how many of owners alone, `HANDOVER_QUORUM_SEEDS` how many with a Postgres and journals,
/// `HANDOVER_FIRST_SEED` from which one on. One test: mistakes are planted in the whole process.
#[test]
fn a_handover_leaves_one_owner_with_everything_and_mistakes_in_that_are_found() {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    prepare();
    let first = number("HANDOVER_FIRST_SEED", 1);
    check(succession::run_with_moves, first, number("HANDOVER_SEEDS", 120));
    check(quorum::run_with_moves, first, number("HANDOVER_QUORUM_SEEDS", 40));
    for bug in [Bug::GiveAndGoOn, Bug::TakeUngiven, Bug::GoOnInGivenGeneration] {
        plant(&[bug]);
        let outcome = look(succession::run_with_moves, 1..number("HANDOVER_BUG_SEEDS", 600));
        plant(&[]);
        let (seed, reason) = outcome.unwrap_or_else(|| panic!("{bug:?} was missed"));
        println!("{bug:?}: seed {seed}: {reason}");
    }
}
