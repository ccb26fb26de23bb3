//! `pagectl tune`: finds the settings with which one's own queries are answered soonest when nothing is in memory,
//! beginning with those of the pageserver whose working directory is given.
//!
//! A second pageserver of its own reads the same bucket, and writes into a directory instead
//! (`remote_storage_scratch`): the one that serves the tenant does not notice. For each trial it starts on an empty
//! disk, with a read-only compute on it that runs the queries.

mod options;
mod search;
mod trial;

use anyhow::{Context, ensure};
use serde_json::{Value, json};

use crate::args::Common;
use crate::output;
use crate::table::table;
pub(crate) use options::TuneArgs;
use search::{Choice, NAMES};
use trial::{Figures, Trials};

/// Below this, a gain is taken for chance.
const LEAST_GAIN: f64 = 1.1;

/// Runs the command.
pub(crate) fn run(common: &Common, args: &TuneArgs) -> anyhow::Result<()> {
    let trials = Trials::new(common, args)?;
    let yours = trials.yours();
    output::progress(format!("with your settings first: {yours}"));
    let mut tried: Vec<(Choice, Vec<Figures>)> = Vec::new();
    let best = search::best(
        yours,
        |choice| trials.is_allowed(choice),
        |choice| {
            let figures = trials.run(&choice)?;
            let ms = median(&figures, |one| one.ms);
            output::progress(format!("{choice}: {ms:.1} ms"));
            tried.push((choice, figures));
            Ok(ms)
        },
    )?;
    // Both once more: what was luck the first time is not likely to come again.
    let again = [trials.run(&yours)?, trials.run(&best)?];
    for (choice, figures) in [yours, best].into_iter().zip(again) {
        let known = tried.iter_mut().find(|(tried, _)| *tried == choice);
        known.context("a choice that was not tried")?.1.extend(figures);
    }
    let report = report(yours, best, &tried)?;
    output::finish(common.json, &report, words(yours, best, &tried, &report));
    Ok(())
}

fn median(figures: &[Figures], of: impl Fn(&Figures) -> f64) -> f64 {
    let mut all: Vec<f64> = figures.iter().map(of).collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or(f64::NAN)
}

fn ms_of(choice: Choice, tried: &[(Choice, Vec<Figures>)]) -> anyhow::Result<f64> {
    let (_, figures) = tried.iter().find(|(tried, _)| *tried == choice).context("a choice that was not tried")?;
    Ok(median(figures, |one| one.ms))
}

fn report(yours: Choice, best: Choice, tried: &[(Choice, Vec<Figures>)]) -> anyhow::Result<Value> {
    let (before, after) = (ms_of(yours, tried)?, ms_of(best, tried)?);
    ensure!(before > 0.0 && after > 0.0, "the queries take no time: is there one that reads something?");
    let gain = before / after;
    let rows: Vec<Value> = tried
        .iter()
        .map(|(choice, figures)| {
            let ms: Vec<f64> = figures.iter().map(|one| one.ms).collect();
            json!({ "settings": choice, "ms": ms, "median_ms": median(figures, |one| one.ms),
                "requests": median(figures, |one| one.requests), "bytes": median(figures, |one| one.bytes) })
        })
        .collect();
    Ok(json!({ "yours": yours, "best": best, "yours_ms": before, "best_ms": after, "gain": gain,
        "is_better": best != yours && gain >= LEAST_GAIN, "tried": rows }))
}

fn words(yours: Choice, best: Choice, tried: &[(Choice, Vec<Figures>)], report: &Value) -> String {
    let head: Vec<&str> = NAMES.into_iter().chain(["ms", "slowest", "requests", "MiB"]).collect();
    let row = |(choice, figures): &(Choice, Vec<Figures>)| {
        let slowest = figures.iter().map(|one| one.ms).fold(0.0, f64::max);
        let (requests, bytes) = (median(figures, |one| one.requests), median(figures, |one| one.bytes));
        let figures = [median(figures, |one| one.ms), slowest, requests, bytes / f64::from(1 << 20)];
        choice.values().into_iter().map(|value| value.to_string()).chain(figures.map(|it| format!("{it:.1}"))).collect()
    };
    let rows: Vec<Vec<String>> = tried.iter().map(row).collect();
    let (before, after) = (&report["yours_ms"], &report["best_ms"]);
    let verdict = if report["is_better"] == true {
        format!(
            "Best, {:.1} times as fast as what you have ({before:.1} ms -> {after:.1} ms). In pageserver.toml:\n\n\
             {}\nand for computes: pagectl compute set NAME {}",
            report["gain"].as_f64().unwrap_or_default(),
            best.server_lines(),
            best.compute_words()
        )
    } else {
        format!("Nothing is better than what you have ({yours}: {before:.1} ms) by a tenth or more")
    };
    format!("{}\n\n{verdict}", table(&head, &rows))
}
