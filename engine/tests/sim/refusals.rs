//! A disk that refuses writes: because it is full, which is transient, or because it is broken, which is not.

use anyhow::{Context, bail, ensure};
use errors::{ErrorKind, StorageError};

use super::block_on;
use super::crash;
use super::disk::{ENOSPC, Failure, SimDisk};
use super::history::{Run, Script};
use super::platter::{Effect, Survival};

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Runs that met errors.
    pub runs: u64,
    /// Effects that failed.
    pub refused: u64,
    /// Calls that reported a retryable error and were repeated.
    pub retries: u64,
    /// Disks reopened afterwards, with everything that was promised.
    pub reopened: u64,
}

fn takes_room(effect: &Effect) -> bool {
    matches!(effect, Effect::Create { .. } | Effect::Write { .. } | Effect::SetLen { .. } | Effect::Rename { .. })
}

fn makes_durable(effect: &Effect) -> bool {
    matches!(effect, Effect::Sync { .. } | Effect::SyncDir { .. })
}

/// Makes `times` effects fail for lack of space, starting at the N-th effect that needs space, for every N. Each
/// failing call must report that it can be retried, reads must continue, the retry must succeed, and nothing may be
/// lost.
pub fn out_of_room(script: &Script, times: u64, tally: &mut Tally) -> anyhow::Result<()> {
    for after in 0.. {
        let failure = Failure { of: takes_room, after, times, errno: ENOSPC };
        if !run_short_of_room(script, failure, tally).with_context(|| format!("no room from effect {after} on"))? {
            return Ok(());
        }
    }
    Ok(())
}

fn run_short_of_room(script: &Script, failure: Failure, tally: &mut Tally) -> anyhow::Result<bool> {
    let disk = SimDisk::new(&script.root);
    let mounted = disk.mount();
    let history = block_on(async {
        let mut run = Run::start(&disk, script).await.context("import")?;
        disk.fail(Some(failure));
        let worked = run.work().await;
        disk.fail(None);
        worked.inspect_err(|_| disk.report(None))?;
        run.check_all_reads().await.context("before closing").inspect_err(|_| disk.report(None))?;
        Ok::<_, anyhow::Error>(run.finish().await)
    })?;
    drop(mounted);
    ensure!(history.promised == history.last, "only {} of {} is durable", history.promised, history.last);
    for survival in [Survival::Synced, Survival::Everything] {
        crash::check_found(&history, disk.survivor(survival), Some(history.promised))?;
        tally.reopened += 1;
    }
    tally.runs += u64::from(disk.failed() > 0);
    tally.refused += disk.failed();
    tally.retries += history.ops.retries;
    Ok(disk.failed() > 0)
}

/// No write succeeds for a while: values are accepted until memory for them runs out, then refused. Accepted values
/// can be read, and are flushed as soon as there is space, whether or not the refused batch is repeated.
pub fn refused_batch(script: &Script) -> anyhow::Result<usize> {
    const IMAGE: usize = 64 << 10;
    let disk = SimDisk::new(&script.root);
    let mounted = disk.mount();
    let is_write = |effect: &Effect| matches!(effect, Effect::Write { .. });
    let (history, taken) = block_on(async {
        let mut run = Run::start(&disk, script).await.context("import")?;
        disk.fail(Some(Failure { of: is_write, after: 0, times: u64::MAX, errno: ENOSPC }));
        let mut taken = 0;
        let refusal = loop {
            match run.put_image(IMAGE).await {
                Ok(()) => taken += 1,
                Err(error) => break error,
            }
            ensure!(taken < 100, "{taken} values are in memory, and there is no end");
        };
        ensure!(refusal.kind() == ErrorKind::Retry, "refused for good: {refusal}");
        run.check_all_reads().await.context("after the refusal")?;
        disk.fail(None);
        run.flush().await.context("what was taken in before")?;
        run.put_image(IMAGE).await.context("the refused value")?;
        run.flush().await?;
        run.check_all_reads().await.context("in the end")?;
        Ok::<_, anyhow::Error>((run.finish().await, taken))
    })
    .inspect_err(|_| disk.report(None))?;
    drop(mounted);
    crash::check_found(&history, disk.survivor(Survival::Synced), Some(history.promised))?;
    Ok(taken)
}

/// Makes the N-th sync fail permanently, for every N: the error must be internal, nothing more is accepted, and
/// everything promised before is there. This holds for any errno: what one sync failed to write, no later one will.
pub fn failing_syncs(script: &Script, errno: i32, tally: &mut Tally) -> anyhow::Result<()> {
    for after in 0.. {
        let failure = Failure { of: makes_durable, after, times: 1, errno };
        if !run_with_failing_sync(script, failure, tally).with_context(|| format!("sync {after} fails"))? {
            return Ok(());
        }
    }
    Ok(())
}

fn run_with_failing_sync(script: &Script, failure: Failure, tally: &mut Tally) -> anyhow::Result<bool> {
    let disk = SimDisk::new(&script.root);
    let mounted = disk.mount();
    let history = block_on(async {
        let mut run = Run::start(&disk, script).await.context("import")?;
        disk.fail(Some(failure));
        let worked = run.work().await;
        let refused = match worked {
            Ok(()) if disk.failed() > 0 => Err(anyhow::anyhow!("no call reported that a sync had failed")),
            Ok(()) => Ok(()),
            Err(error) => check_internal(&error),
        };
        // Retrying must not help.
        let again = if disk.failed() > 0 { run.try_again().await } else { Ok(()) };
        let history = run.finish().await;
        refused?;
        again?;
        Ok::<_, anyhow::Error>(history)
    })?;
    drop(mounted);
    for survival in [Survival::Synced, Survival::Torn(script.seed ^ failure.after)] {
        crash::check_found(&history, disk.survivor(survival), Some(history.promised))?;
        tally.reopened += 1;
    }
    tally.runs += u64::from(disk.failed() > 0);
    tally.refused += disk.failed();
    Ok(disk.failed() > 0)
}

fn check_internal(error: &anyhow::Error) -> anyhow::Result<()> {
    match error.chain().find_map(|cause| cause.downcast_ref::<StorageError>()) {
        Some(cause) if cause.kind() == ErrorKind::Internal => Ok(()),
        _ => bail!("a failed sync is reported as: {error:#}"),
    }
}
