//! Crashes after every durable effect of a scripted run: whatever was promised must be found again, and no stray
//! files.
//!
//! The script runs once, recording a journal of its effects; the disk at any moment is a prefix of the journal. Each
//! moment yields three disks: what was synced, everything, and a random part of the rest with torn writes.
//!
//! Set `MORE_SEEDS=20` in the environment to try that many more scripts.

use crate::sim::crash::{Effort, Tally, crash_everywhere, crash_for_real};
use crate::sim::history::{History, Script, root};
use anyhow::Context;
use virtual_file::{FatalAction, set_fatal_action};

const SEEDS: [u64; 2] = [1, 20_261_121];
const EFFORT: Effort = Effort { double_every: 3, work_every: 10 };
/// After every this many effects the script itself runs again, on a disk that dies there.
const REAL_EVERY: usize = 37;

/// The fixed seeds, and as many more as requested.
fn seeds() -> impl Iterator<Item = u64> {
    let more = std::env::var("MORE_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(0);
    SEEDS.into_iter().chain(1000..1000 + more)
}

fn script(seed: u64) -> Script {
    let root = root(&format!("crash-points-{seed}"));
    Script { root, seed, ops: 500, checkpoint_distance: 90_000, restarts: true, retries: false }
}

#[test]
fn every_crash_keeps_what_was_promised() -> anyhow::Result<()> {
    set_fatal_action(FatalAction::Report);
    for seed in seeds() {
        let history = History::record(script(seed)).context("run without faults")?;
        println!("seed {seed}: {} effects of {:?}", history.journal.len(), history.ops);
        let mut tally = Tally::default();
        crash_everywhere(&history, EFFORT, &mut tally)?;
        println!(
            "seed {seed}: crash points {}, survivals {}, reopened {} ({} compared, {} before there was a timeline); \
             double crashes {}, survivals of them reopened {}",
            tally.points,
            tally.images,
            tally.reopened,
            tally.compared,
            tally.no_timeline,
            tally.double_points,
            tally.double_reopened
        );
        assert_eq!(tally.points as usize, history.journal.len() + 1);
        assert_eq!(tally.images + tally.double_reopened, tally.reopened + tally.no_timeline);
    }
    Ok(())
}

#[test]
fn the_engine_itself_meets_the_errors_of_a_dying_disk() -> anyhow::Result<()> {
    set_fatal_action(FatalAction::Report);
    let script = Script { root: root("crash-for-real"), ..script(SEEDS[0]) };
    let history = History::record(script).context("run without faults")?;
    let mut tally = Tally::default();
    for effects in (0..history.journal.len()).step_by(REAL_EVERY) {
        crash_for_real(&history, effects, &mut tally).with_context(|| format!("disk dies after {effects} effects"))?;
    }
    println!(
        "seed {}: runs on a dying disk {}, survivals {}, reopened {}",
        SEEDS[0], tally.points, tally.images, tally.reopened
    );
    Ok(())
}
