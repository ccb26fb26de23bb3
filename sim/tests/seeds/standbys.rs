//! Owners, their standbys and who waits for them: at most one server acts as the owner, and one does in time; what was
//! acknowledged is there, whoever fails; a tenant is handed over whole. And mistakes in that are found.

use sim::kind::Kind;
use sim::tally::Tally;

use crate::{find, fleet, number, sim};

/// Of each kind, seeds that are run twice.
const TWICE: u64 = 4;

/// Runs the worlds of some seeds, a few of them twice.
fn check(kind: Kind, count: u64) -> Tally {
    let (first, count) = (number("SIM_FIRST_SEED", 1), number("SIM_STANDBY_SEEDS", count).max(TWICE));
    let mut tally = Tally::new(kind, first);
    for (first, count, twice) in [(first, TWICE, true), (first + TWICE, count - TWICE, false)] {
        let sum = fleet(kind, None).run_all(first, count, 2, twice);
        if let Some((seed, reason)) = sum.failure {
            let (_, story) = sim(&[&seed.to_string(), &format!("--world={}", kind.name()), "--trace"]);
            panic!("seed {seed} of {kind:?}: {reason}\n{story}");
        }
        tally.join(sum.tally);
    }
    assert_eq!(tally.seeds, count);
    println!("{} seeds of {kind:?}", tally.seeds);
    tally
}

/// `SIM_STANDBY_SEEDS` says how many of each kind, `SIM_FIRST_SEED` from which one on; with others as well.
#[test]
fn at_most_one_acts_as_the_owner() {
    check(Kind::Succession, 150);
}

#[test]
fn what_a_quorum_has_acknowledged_is_there() {
    for kind in [Kind::Quorum, Kind::QuorumSlowDisk, Kind::QuorumTakeover, Kind::QuorumTail] {
        check(kind, 60);
    }
}

#[test]
fn a_handover_leaves_one_owner_with_everything() {
    for (kind, count) in [(Kind::SuccessionMoves, 120), (Kind::QuorumMoves, 40)] {
        let tally = check(kind, count);
        let moved = tally.reached.get("handovers_total").copied().unwrap_or(0);
        assert!(moved * 4 > tally.seeds, "a tenant was handed over in {moved} of {} worlds", tally.seeds);
    }
}

/// Rare ones are looked for near where they are.
#[test]
fn mistakes_of_standbys_are_found() {
    for (kind, bug, first) in [
        (Kind::Succession, "OutliveLease", 1),
        (Kind::Succession, "TakeTooEarly", 1),
        (Kind::Succession, "CountLeaseFromAnswer", 1),
        (Kind::Succession, "IgnoreClaims", 1),
        (Kind::Succession, "TakeWithoutSecondLook", 201),
        (Kind::SuccessionMoves, "GiveAndGoOn", 1),
        (Kind::SuccessionMoves, "TakeUngiven", 1),
        (Kind::SuccessionMoves, "GoOnInGivenGeneration", 201),
        (Kind::Quorum, "ForgetAtTakeover", 1),
        (Kind::Quorum, "StandbyLeavesGap", 1),
        (Kind::QuorumSlowDisk, "StandbyBeforeSync", 1),
        (Kind::QuorumTakeover, "ForgetWhenSteppingDown", 1),
        (Kind::QuorumTakeover, "GiveUpForNobody", 1),
        (Kind::QuorumTakeover, "GiveUpUnknownAtOnce", 1),
        (Kind::QuorumTakeover, "ReplayOtherWriter", 1),
        (Kind::QuorumTail, "TailLeavesGap", 1),
    ] {
        find(kind, bug, first, 400);
    }
}
