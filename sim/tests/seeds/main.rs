//! The simulation as a whole: it is the same each time, it finds what is wrong, and it says how to see that again.

mod standbys;

use std::process::{Command, Output};

use sim::fleet::Fleet;
use sim::kind::Kind;
use sim::plan::Plan;

/// Worlds that do nothing for a day.
const IDLE_SEEDS: u64 = 24;

fn fleet(kind: Kind, bug: Option<&str>) -> Fleet {
    Fleet { program: env!("CARGO_BIN_EXE_sim").into(), kind, bug: bug.map(str::to_owned) }
}

/// Looks for what a mistake breaks in `count` seeds from `first` on.
fn find(kind: Kind, bug: &str, first: u64, count: u64) {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    let sum = fleet(kind, Some(bug)).run_all(first, count, 2, false);
    let (seed, reason) = sum.failure.unwrap_or_else(|| panic!("{bug} was missed"));
    // Otherwise it is another mistake, and one that is there.
    let without = fleet(kind, None).run(&kind.plan(seed)).unwrap();
    assert_eq!(without.violation, None, "seed {seed} of {kind:?} fails without {bug} as well");
    println!("{bug}: seed {seed}: {reason}");
}

fn sim(args: &[&str]) -> (Output, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_sim")).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}")))
}

/// `SIM_SEEDS` says how many, `SIM_FIRST_SEED` from which one on.
#[test]
fn promises_are_kept_and_each_seed_is_the_same_twice() {
    let (first, count) = (number("SIM_FIRST_SEED", 1), number("SIM_SEEDS", 500));
    let sum = fleet(Kind::Tenants, None).run_all(first, count, 2, true);
    if let Some((seed, reason)) = sum.failure {
        let (_, story) = sim(&[&seed.to_string()]);
        panic!("seed {seed}: {reason}\n{story}");
    }
    assert_eq!(sum.tally.seeds, count);
    println!("each twice: {}", sum.tally);
}

#[test]
fn a_seed_is_the_same_each_time_and_no_two_are_alike() {
    let outcomes: Vec<_> = (1..5).map(|seed| fleet(Kind::Tenants, None).run(&Plan::draw(seed)).unwrap()).collect();
    for (seed, outcome) in (1..).zip(&outcomes) {
        assert_eq!(fleet(Kind::Tenants, None).run(&Plan::draw(seed)).unwrap(), *outcome, "seed {seed}");
        assert_eq!(outcomes.iter().filter(|other| other.hash == outcome.hash).count(), 1, "seed {seed}");
    }
}

#[test]
fn planted_mistakes_are_found() {
    // Rare ones are looked for near where they are.
    for (bug, first) in [
        ("SkipOneLsn", 1),
        ("DropOneDelta", 1),
        ("IgnoreChecksum", 1),
        ("ForgetBranchPoint", 1),
        ("ReadWithoutRecheck", 1),
        ("PromiseUploadTooEarly", 1),
        ("ConfirmWithoutLook", 301),
        ("DeleteWithoutMark", 1),
        ("PromiseUnstoredLease", 1),
        ("ForgetStoredHolds", 1),
        ("TrustListing", 201),
        ("TakeTakenGeneration", 1),
        ("ForgetGrandparent", 1),
        ("DeleteBeforeLastReader", 1),
        ("WaitForEver", 1),
        ("ReportReceivedAsDurable", 1),
        ("JournalBeforeSync", 1),
        ("ReportBeforeKept", 601),
    ] {
        find(Kind::Tenants, bug, first, 200);
    }
}

/// Ten requests a day are what an idle tenant may cost, whatever has happened to it before.
#[test]
fn an_idle_tenant_hardly_asks_the_bucket() {
    for seed in 1..=IDLE_SEEDS {
        let (output, story) = sim(&[&seed.to_string(), "--idle-hours", "24", "--trace"]);
        let told = story.lines().find(|line| line.contains("nothing happened for 86400s"));
        assert!(output.status.success(), "{story}");
        println!("seed {seed}: {}", told.expect("a day on which nothing happened"));
    }
}

#[test]
fn a_failure_is_shrunk_and_told() {
    let large = (1..).filter(|seed| Plan::draw(*seed).steps.len() >= 40);
    let breaks =
        |seed: &u64| fleet(Kind::Tenants, Some("SkipOneLsn")).run(&Plan::draw(*seed)).unwrap().violation.is_some();
    let seed = large.take(5).find(breaks).expect("a large world that the mistake breaks").to_string();
    let (output, text) = sim(&[&seed, "--bug", "SkipOneLsn"]);
    assert!(!output.status.success(), "{text}");
    assert!(text.contains("VIOLATION") && text.contains("steps suffice"), "{text}");
    let again = text.lines().find_map(|line| line.strip_prefix("run it again: ")).expect("a command");
    let (_, arguments) = again.split_once(" -- ").expect("arguments");
    let (seed, steps) = arguments.split_once(' ').expect("a seed and steps");
    let steps = steps.split_whitespace().find(|word| word.starts_with("--steps")).expect("steps");
    assert!(text.contains(&format!("seed {seed}: ")), "{text}");
    assert!(steps.split(',').count() < Plan::draw(seed.parse().unwrap()).steps.len() / 2, "{text}");
    let (output, story) = sim(&[seed, steps, "--trace", "--bug", "SkipOneLsn"]);
    assert!(!output.status.success() && story.contains("VIOLATION"), "{story}");
    let (output, story) = sim(&[seed, steps, "--trace"]);
    assert!(output.status.success() && !story.contains("VIOLATION"), "{story}");
}
