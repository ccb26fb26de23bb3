//! A full disk at every write, and a failure of every sync: the former is transient and loses nothing, the latter
//! ends all writing.

use crate::sim::disk::{EIO, ENOSPC};
use crate::sim::history::{Script, root};
use crate::sim::refusals::{Tally, failing_syncs, out_of_room, refused_batch};
use virtual_file::{FatalAction, set_fatal_action};

const SEED: u64 = 3;

fn script(name: &str) -> Script {
    Script { root: root(name), seed: SEED, ops: 60, checkpoint_distance: 70_000, restarts: false, retries: true }
}

#[test]
fn lack_of_room_is_reported_and_passes() -> anyhow::Result<()> {
    for times in [1, 4] {
        let mut tally = Tally::default();
        out_of_room(&script("out-of-room"), times, &mut tally)?;
        println!(
            "seed {SEED}, no room for {times}: {} runs, {} effects refused, {} calls repeated, {} disks reopened",
            tally.runs, tally.refused, tally.retries, tally.reopened
        );
        assert!(tally.runs > 50 && tally.retries > 50, "too little was refused: {tally:?}");
    }
    Ok(())
}

#[test]
fn a_refused_batch_does_not_hold_up_what_was_taken_in() -> anyhow::Result<()> {
    let taken = refused_batch(&Script { checkpoint_distance: 64 << 20, ..script("refused-batch") })?;
    println!("seed {SEED}: {taken} values taken in while no write succeeded, flushed when there was room");
    Ok(())
}

#[test]
fn a_failed_sync_ends_all_writing() -> anyhow::Result<()> {
    set_fatal_action(FatalAction::Report);
    for errno in [EIO, ENOSPC] {
        let mut tally = Tally::default();
        failing_syncs(&script("failing-sync"), errno, &mut tally)?;
        println!(
            "seed {SEED}: {} runs with a sync that fails by {errno}, {} disks reopened",
            tally.runs, tally.reopened
        );
        assert!(tally.runs > 20, "too few syncs failed: {tally:?}");
    }
    Ok(())
}
