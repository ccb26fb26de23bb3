//! Crashes at every effect of a history: whatever was promised must be found again, and no stray files.

use anyhow::{Context, ensure};
use bytes::Bytes;
use engine::tenant::list_timelines;
use engine::tenant::storage_layer::LayerFileName;
use engine::tenant::timeline::Timeline;
use engine::tenant::timeline::manifest::MANIFEST_NAME;
use pageserver_api::value::Value;
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use super::block_on;
use super::disk::{Entry, SimDisk};
use super::history::{History, Run, Script, compare};
use super::platter::{Platter, Survival};
use crate::stack::{IMPORT_LSN, context, import, keys};

/// Counts of what was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Moments at which the host crashed.
    pub points: u64,
    /// Disks found after these crashes.
    pub images: u64,
    /// Those that held a timeline, which opened and had everything that was promised.
    pub reopened: u64,
    /// Those that correctly held no timeline yet.
    pub no_timeline: u64,
    /// Moments during recovery at which the host crashed again.
    pub double_points: u64,
    /// Disks found after these second crashes, all of which opened.
    pub double_reopened: u64,
    /// Complete sets of values compared.
    pub compared: u64,
}

/// How much to try.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// After every this many effects, recovery is interrupted as well.
    pub double_every: usize,
    /// After every this many effects, the recovered timeline must continue to work.
    pub work_every: usize,
}

/// Crashes after every effect, with three surviving disks each.
pub fn crash_everywhere(history: &History, effort: Effort, tally: &mut Tally) -> anyhow::Result<()> {
    let mut platter = SimDisk::new(&history.script.root).platter();
    for at in 0..=history.journal.len() {
        let reported = history.journal.get(at).map_or(Some(history.promised), |entry| entry.reported);
        crash_at(history, &platter, at, reported, effort, tally).with_context(|| {
            let next = history.journal.get(at).map(|entry| &entry.effect);
            format!("seed {}, crash after {at} effects, before {next:?}", history.script.seed)
        })?;
        if let Some(entry) = history.journal.get(at) {
            platter.apply(&entry.effect);
        }
    }
    Ok(())
}

fn survivals(seed: u64) -> [Survival; 3] {
    [Survival::Synced, Survival::Everything, Survival::Torn(seed)]
}

fn crash_at(
    history: &History,
    platter: &Platter,
    at: usize,
    reported: Option<Lsn>,
    effort: Effort,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    tally.points += 1;
    for survival in survivals(history.script.seed ^ at as u64) {
        let image = platter.survivor(survival);
        let works = at.is_multiple_of(effort.work_every);
        let recovery = block_on(reopen(history, image.clone(), reported, at, works, tally));
        let recovery = recovery.with_context(|| format!("{survival:?} found"))?;
        tally.images += 1;
        if at.is_multiple_of(effort.double_every) {
            crash_again(history, image, &recovery, reported, at, tally)
                .with_context(|| format!("{survival:?} found, recovery of it interrupted"))?;
        }
    }
    Ok(())
}

/// Crashes after every effect of a recovery.
fn crash_again(
    history: &History,
    mut image: Platter,
    recovery: &[Entry],
    reported: Option<Lsn>,
    at: usize,
    tally: &mut Tally,
) -> anyhow::Result<()> {
    for (number, entry) in recovery.iter().enumerate() {
        image.apply(&entry.effect);
        tally.double_points += 1;
        for survival in survivals(history.script.seed ^ (at + number) as u64) {
            let found = image.survivor(survival);
            block_on(reopen(history, found, reported, at, false, tally))
                .with_context(|| format!("after {} effects, {survival:?}", number + 1))?;
            tally.double_reopened += 1;
        }
    }
    Ok(())
}

/// Opens the disk `image` and checks everything that was promised. Returns the effects of the recovery.
async fn reopen(
    history: &History,
    image: Platter,
    reported: Option<Lsn>,
    at: usize,
    works: bool,
    tally: &mut Tally,
) -> anyhow::Result<Vec<Entry>> {
    let disk = SimDisk::of(&history.script.root, image);
    let _mounted = disk.mount();
    let ids = (history.new.tenant_shard_id, history.new.timeline_id);
    let found = list_timelines(history.conf).await.context("listing timelines")?;
    if found.is_empty() {
        ensure!(reported.is_none(), "no timeline is found, but one was promised up to {reported:?}");
        import_again(history, &disk).await.context("making the timeline again")?;
        tally.no_timeline += 1;
        return Ok(Vec::new());
    }
    ensure!(found == [ids], "other timelines are found: {found:?}");
    let ctx = context();
    let timeline = Timeline::open(history.conf, ids.0, ids.1, &ctx).await.context("opening")?;
    let recovery = disk.take_journal();
    let recovered = timeline.disk_consistent_lsn();
    ensure!(Some(recovered) >= reported, "history up to {reported:?} was promised, only {recovered} is found");
    ensure!(recovered <= history.last, "{recovered} was never reached");
    ensure!(timeline.check_readable(recovered).is_ok(), "the end of what is found, {recovered}, is not readable");
    let earlier = history.lsns[at * 7919 % history.lsns.len()];
    for lsn in [recovered, reported.unwrap_or(IMPORT_LSN), earlier.min(recovered)] {
        compare(&timeline, lsn, &history.expected(lsn), &ctx).await.context("values found after the crash")?;
        tally.compared += 1;
    }
    check_files(history, &disk, &timeline)?;
    if works {
        go_on(&timeline, recovered).await.context("going on after the crash")?;
        check_files(history, &disk, &timeline)?;
    }
    timeline.shutdown().await;
    tally.reopened += 1;
    Ok(recovery)
}

/// Checks that an interrupted import can be repeated, and that nothing of the first attempt remains.
async fn import_again(history: &History, disk: &SimDisk) -> anyhow::Result<()> {
    let (timeline, _) = import(history.conf, history.new).await?;
    compare(&timeline, IMPORT_LSN, &history.expected(IMPORT_LSN), &context()).await?;
    check_files(history, disk, &timeline)?;
    timeline.shutdown().await;
    Ok(())
}

/// Opens the disk `image`, where history up to `reported` was promised.
pub fn check_found(history: &History, image: Platter, reported: Option<Lsn>) -> anyhow::Result<()> {
    block_on(reopen(history, image, reported, 0, true, &mut Tally::default())).map(drop)
}

/// Checks that there are only the manifest and one file per layer.
fn check_files(history: &History, disk: &SimDisk, timeline: &Timeline) -> anyhow::Result<()> {
    let files = disk.platter().list(&history.dir());
    let (layers, others): (Vec<_>, Vec<_>) = files.iter().partition(|name| name.parse::<LayerFileName>().is_ok());
    ensure!(others == [MANIFEST_NAME], "beside layers there are {others:?}");
    let expected = timeline.info().layers;
    ensure!(layers.len() == expected, "{} layer files for {expected} layers", layers.len());
    Ok(())
}

/// Checks that a recovered timeline ingests, stores and returns a value.
async fn go_on(timeline: &Timeline, recovered: Lsn) -> anyhow::Result<()> {
    let (key, lsn, ctx) = (keys()[7], recovered + 8, context());
    let value = Bytes::from_static(b"after the crash");
    let mut batch = SerializedValueBatch::default();
    batch.put_key(&key, lsn, &Value::Image(value.clone()))?;
    timeline.put_batch(batch, &ctx).await?;
    timeline.finish_write(lsn, recovered);
    timeline.flush(&ctx).await?;
    ensure!(timeline.disk_consistent_lsn() == lsn);
    ensure!(timeline.get(key, lsn, &ctx).await? == value);
    Ok(())
}

/// Runs the script again on a disk that dies after `effects` effects, so that the engine itself meets the errors,
/// then checks the three surviving disks. The history is that of the same script.
pub fn crash_for_real(history: &History, effects: usize, tally: &mut Tally) -> anyhow::Result<()> {
    let script: &Script = &history.script;
    let disk = SimDisk::new(&script.root);
    let mounted = disk.mount();
    disk.crash_in(effects);
    let reported = block_on(async {
        let mut run = match Run::start(&disk, script).await {
            Ok(run) => run,
            Err(_) => return Ok(None),
        };
        ensure!(run.work().await.is_err(), "all went well on a disk that died");
        let reported = run.timeline.disk_consistent_lsn();
        disk.report(None);
        Ok(Some(reported))
    })?;
    ensure!(disk.crashed(), "the script ended before the disk died");
    ensure!(disk.effects() == effects, "{} effects instead of {effects}", disk.effects());
    drop(mounted);
    tally.points += 1;
    for survival in survivals(script.seed ^ effects as u64) {
        block_on(reopen(history, disk.survivor(survival), reported, effects, false, tally))
            .with_context(|| format!("after a run that met errors, {survival:?} found"))?;
        tally.images += 1;
    }
    Ok(())
}
