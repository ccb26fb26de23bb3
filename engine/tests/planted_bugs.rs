//! Known bugs, planted one at a time: the tests must catch each of them, and find nothing when none is planted.

mod sim;
mod stack;

use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::Context;
use fault::{Bug, plant};
use sim::block_on;
use sim::crash::{self, Effort, crash_everywhere};
use sim::damage::{self, Content, Subject, flip_bits, histories, misname};
use sim::detach::{self, crash_while_detaching, detach_and_forget};
use sim::disk::SimDisk;
use sim::history::{History, Script, root};
use sim::l0_limit::freeze_for_wal;
use sim::refusals::{self, out_of_room};
use sim::retention::{self, keep_and_remove, limit, remove_beside_jobs};
use sim::samples::Maker;
use virtual_file::{FatalAction, set_fatal_action};

const SEED: u64 = 11;

/// What needs a bucket, several servers, or much at once: `planted_bugs_remote.rs` and the simulation look for it
/// (`docs/testing.md` says what they find).
const ELSEWHERE: [Bug; 31] = [
    Bug::DeleteBeforeConfirm,
    Bug::SwallowUploadError,
    Bug::PromiseUploadTooEarly,
    Bug::ConfirmWithoutLook,
    Bug::DeleteBeforeLastReader,
    Bug::TrustListing,
    Bug::TakeTakenGeneration,
    Bug::DeleteWithoutMark,
    Bug::PromiseUnstoredLease,
    Bug::ForgetStoredHolds,
    Bug::WaitForEver,
    Bug::ReportReceivedAsDurable,
    Bug::JournalBeforeSync,
    Bug::ReportBeforeKept,
    Bug::VoidWholePage,
    Bug::CountLeaseFromAnswer,
    Bug::OutliveLease,
    Bug::IgnoreClaims,
    Bug::TakeWithoutSecondLook,
    Bug::TakeTooEarly,
    // `sim/tests/seeds/standbys.rs` looks for these, and for those that concern leases.
    Bug::ForgetAtTakeover,
    Bug::ForgetWhenSteppingDown,
    Bug::GiveUpForNobody,
    Bug::GiveUpUnknownAtOnce,
    Bug::ReplayOtherWriter,
    Bug::StandbyLeavesGap,
    Bug::StandbyBeforeSync,
    Bug::TailLeavesGap,
    Bug::GiveAndGoOn,
    Bug::TakeUngiven,
    Bug::GoOnInGivenGeneration,
];

/// A test that may catch a bug.
type Detector = (&'static str, fn() -> anyhow::Result<()>);

const DETECTORS: [Detector; 8] = [
    ("model", model),
    ("crash points", crash_points),
    ("corruption", corruption),
    ("refusals", refused),
    ("retention", retention),
    ("detaching", detaching),
    ("removal beside jobs", beside_jobs),
    ("L0 layers", l0_layers),
];

fn script(name: &str) -> Script {
    Script { root: root(name), seed: SEED, ops: 60, checkpoint_distance: 70_000, restarts: true, retries: false }
}

fn model() -> anyhow::Result<()> {
    History::record(script("planted-model")).map(drop)
}

fn crash_points() -> anyhow::Result<()> {
    let history = History::record(script("planted-crash")).context("run without faults")?;
    let effort = Effort { double_every: 10, work_every: 10 };
    crash_everywhere(&history, effort, &mut crash::Tally::default())
}

fn corruption() -> anyhow::Result<()> {
    let root = root("planted-corruption");
    let disk = SimDisk::new(&root);
    let _mounted = disk.mount();
    block_on(async {
        let mut maker = Maker::new(&root, SEED).await?;
        let mut subjects = Vec::new();
        for bytes in [20 << 10, 40 << 10] {
            let versions = maker.versions(bytes);
            let (desc, path) = maker.written(&versions).await?;
            let content = Content::Layer(desc, histories(&versions));
            subjects.push(Subject { kind: "delta layer", path, content, part: None });
        }
        let mut tally = damage::Tally::default();
        for subject in &subjects {
            flip_bits(&disk, subject, 101, &mut tally).await?;
        }
        misname(&subjects.iter().collect::<Vec<_>>(), &mut tally).await
    })
}

fn refused() -> anyhow::Result<()> {
    let script = Script { ops: 25, restarts: false, retries: true, ..script("planted-refusals") };
    out_of_room(&script, 2, &mut refusals::Tally::default())
}

fn retention() -> anyhow::Result<()> {
    keep_and_remove(&root("planted-retention"), SEED, &mut retention::Tally::default())?;
    limit(&root("planted-limit"), SEED, &mut retention::Tally::default())
}

fn detaching() -> anyhow::Result<()> {
    detach_and_forget(&root("planted-detach"), SEED, &mut detach::Tally::default())?;
    crash_while_detaching(&root("planted-detach-crash"), SEED, &mut detach::Tally::default())
}

fn beside_jobs() -> anyhow::Result<()> {
    let mut tally = retention::Tally::default();
    (0..4).try_for_each(|more| remove_beside_jobs(&root("planted-beside"), SEED + more, &mut tally))
}

fn l0_layers() -> anyhow::Result<()> {
    freeze_for_wal(&root("planted-l0"))
}

/// The first test that finds something, and what it found.
fn caught() -> Option<(&'static str, String)> {
    DETECTORS.iter().find_map(|(name, detector)| {
        let error = match catch_unwind(AssertUnwindSafe(detector)) {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => format!("panic: {}", panic.downcast_ref::<String>().map_or("", String::as_str)),
        };
        Some((*name, error))
    })
}

#[test]
fn every_planted_bug_is_caught() {
    const { assert!(fault::CAN_BE_PLANTED, "this build cannot have bugs: it needs debug assertions") };
    set_fatal_action(FatalAction::Report);
    plant(&[]);
    assert_eq!(caught(), None, "something is found although no bug is planted");
    let (mut missed, mut absent) = (Vec::new(), Vec::new());
    let mut tried = 0;
    let all: Vec<&Bug> = Bug::ALL.iter().filter(|bug| !ELSEWHERE.contains(bug)).collect();
    for bug in &all {
        plant(&[**bug]);
        match caught() {
            Some((detector, finding)) => println!("{bug:?}: caught by {detector}: {finding:.160}"),
            None => missed.push(bug),
        }
        // The finding may have had another cause.
        if bug.has_happened() {
            tried += 1;
        } else {
            absent.push(bug);
        }
    }
    plant(&[]);
    let all = all.len();
    // Past the capture of the test's output, which nobody sees when it passes.
    let caught = all - missed.len();
    let shown =
        writeln!(std::io::stderr(), "planted bugs: of {all}, {tried} were tried and {caught} caught (seed {SEED})");
    shown.expect("standard error");
    assert!(absent.is_empty(), "nothing asks for these any more: {absent:?}");
    assert!(missed.is_empty() && tried == all, "not caught: {missed:?}");
}
