//! What a quorum of an owner and a standby has acknowledged survives the loss of one of them together with the
//! Postgres; what the tail in the bucket has survives the loss of all; and mistakes in that are found.

use fault::{Bug, plant};
use parking_lot::Mutex;
use sim::quorum::{run, run_after_a_takeover, run_on_a_slow_disk, run_to_the_tail};
use sim::run::{Outcome, prepare};
use sim::story::Telling;

/// With `RUST_LOG` servers say what they do, on standard error.
fn begin() {
    prepare();
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let _ =
            tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stderr).try_init();
    }
}

type World = fn(u64, Telling) -> Outcome;

/// The first seed in which something is wrong, and what.
fn look(run: World, seeds: std::ops::Range<u64>, telling: Telling) -> Option<(u64, String)> {
    seeds.into_iter().find_map(|seed| Some((seed, run(seed, telling).violation?)))
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}")))
}

/// Bugs are planted in the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// `QUORUM_SEEDS` says how many, `QUORUM_FIRST_SEED` from which one on; with `QUORUM_ALOUD=1` each is told.
#[test]
fn what_a_quorum_has_acknowledged_is_there() {
    let _alone = ONE_AT_A_TIME.lock();
    begin();
    let (first, count) = (number("QUORUM_FIRST_SEED", 1), number("QUORUM_SEEDS", 60));
    let telling = if number("QUORUM_ALOUD", 0) == 1 { Telling::Aloud } else { Telling::Quiet };
    // One after the other: simulated disks are known by their paths, which are drawn.
    let worlds: [(&str, World); 4] = [
        ("any", run),
        ("on a slow disk", run_on_a_slow_disk),
        ("after a takeover", run_after_a_takeover),
        ("to the tail", run_to_the_tail),
    ];
    for (name, run) in worlds {
        if let Some((seed, reason)) = look(run, first..first + count, telling) {
            run(seed, Telling::Aloud);
            panic!("seed {seed} of the world {name:?}: {reason}");
        }
    }
}

#[test]
fn mistakes_in_what_a_quorum_keeps_are_found() {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    let _alone = ONE_AT_A_TIME.lock();
    begin();
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
        let outcome = look(run, 1..number("QUORUM_BUG_SEEDS", 400), Telling::Quiet);
        plant(&[]);
        let (seed, reason) = outcome.unwrap_or_else(|| panic!("{bug:?} was missed"));
        println!("{bug:?}: seed {seed}: {reason}");
    }
}
