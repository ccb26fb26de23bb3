//! Of an owner and its standbys at most one acts as the owner, and one does in time; and mistakes in that are found.

use std::collections::BTreeMap;

use fault::{Bug, plant};
use sim::run::prepare;
use sim::story::Telling;
use sim::succession::run;

/// The first seed in which something is wrong, and what.
fn look(seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| Some((seed, run(seed, Telling::Quiet).violation?)))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}")))
}

/// `SUCCESSION_SEEDS` says how many, `SUCCESSION_FIRST_SEED` from which one on.
#[test]
fn at_most_one_acts_as_the_owner_and_mistakes_in_that_are_found() {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    prepare();
    let (first, count) = (number("SUCCESSION_FIRST_SEED", 1), number("SUCCESSION_SEEDS", 150));
    if let Some((seed, reason)) = look(first..first + count) {
        run(seed, Telling::Aloud);
        panic!("seed {seed}: {reason}");
    }
    let mut found = BTreeMap::new();
    for bug in
        [Bug::OutliveLease, Bug::TakeTooEarly, Bug::CountLeaseFromAnswer, Bug::IgnoreClaims, Bug::TakeWithoutSecondLook]
    {
        plant(&[bug]);
        let outcome = look(1..number("SUCCESSION_BUG_SEEDS", 1500));
        plant(&[]);
        let (seed, reason) = outcome.unwrap_or_else(|| panic!("{bug:?} was missed"));
        println!("{bug:?}: seed {seed}: {reason}");
        found.insert(seed, bug);
    }
    let outcome = run(7, Telling::Quiet);
    assert_eq!(run(7, Telling::Quiet), outcome, "a seed is the same twice");
}
