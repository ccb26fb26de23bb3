//! `sim`: runs seeds of the simulation.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use fault::Bug;
use sim::fleet::{Fleet, Sum};
use sim::kind::Kind;
use sim::plan::Plan;
use sim::run::prepare;
use sim::shrink::shrink;
use sim::story::Telling;
use sim::tally::{Tally, reached};

/// Seeds after each of which progress is noted.
const BLOCK: u64 = 500;

/// Runs whole servers, their disks and their bucket in virtual time, and checks what they promise.
#[derive(Debug, Parser)]
struct Args {
    /// The first seed.
    seed: u64,
    /// What lives in the worlds.
    #[arg(long, value_enum, default_value_t)]
    world: Kind,
    /// How many seeds, from the first one on, each in a process of its own.
    #[arg(long, default_value_t = 1)]
    count: u64,
    /// How many processes run at once.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Run each twice: both runs must be the same in all that happens.
    #[arg(long)]
    twice: bool,
    /// Note in this file what has passed, every 500 seeds; a run of the same seeds goes on from it.
    #[arg(long)]
    progress: Option<PathBuf>,
    /// Print the story of the seed.
    #[arg(long, conflicts_with = "count")]
    trace: bool,
    /// Print all calls of disks and bucket, too.
    #[arg(long, conflicts_with = "count")]
    calls: bool,
    /// Of the seed's steps only those with these numbers (of the world `tenants`, as the next).
    #[arg(long, value_delimiter = ',', conflicts_with = "count")]
    steps: Option<Vec<usize>>,
    /// Afterwards, so many hours in which nobody does anything: ten requests a day are allowed for each tenant.
    #[arg(long, default_value_t = 0, conflicts_with = "count")]
    idle_hours: u64,
    /// Do not look for the fewest steps that break the promise.
    #[arg(long)]
    no_shrink: bool,
    /// With this bug in the servers (debug assertions only); see `fault::Bug`.
    #[arg(long)]
    bug: Option<String>,
    /// For each bug that can be planted: how many seeds it takes to find it, of `--count` at most.
    #[arg(long)]
    bugs: bool,
    /// For the process that runs many: print what came of it.
    #[arg(long, hide = true)]
    report: bool,
}

fn main() -> ExitCode {
    let args = Args::parse();
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).without_time().with_writer(std::io::stderr).init();
    }
    if let Err(reason) = plant(args.bug.as_deref()) {
        eprintln!("{reason}");
        return ExitCode::from(2);
    }
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            eprintln!("the program does not know where it is: {error}");
            return ExitCode::from(2);
        }
    };
    if args.world != Kind::Tenants && (args.steps.is_some() || args.idle_hours > 0) {
        eprintln!("--steps and --idle-hours are of the world {:?} only", Kind::Tenants.name());
        return ExitCode::from(2);
    }
    let fleet = Fleet { program, kind: args.world, bug: args.bug.clone() };
    match () {
        () if args.bugs => find_bugs(&args, &fleet),
        () if args.report || args.trace || args.calls || args.steps.is_some() || args.idle_hours > 0 => run_here(&args),
        () => run_many(&args, &fleet),
    }
}

fn plan_of(args: &Args) -> Plan {
    let plan = args.world.plan(args.seed);
    let plan = match &args.steps {
        Some(steps) => plan.only(steps),
        None => plan,
    };
    Plan { idle: Duration::from_secs(3600 * args.idle_hours), ..plan }
}

fn run_here(args: &Args) -> ExitCode {
    let telling = match (args.trace, args.calls) {
        (_, true) => Telling::Everything,
        (true, false) => Telling::Aloud,
        (false, false) => Telling::Quiet,
    };
    prepare();
    let outcome = args.world.run(&plan_of(args), telling);
    let line = if args.report { reached().map(|reached| outcome.line(&reached)) } else { Ok(format!("{outcome:?}")) };
    match line {
        Ok(line) => println!("{line}"),
        Err(error) => eprintln!("what was reached is not known: {error:#}"),
    }
    if outcome.violation.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn run_many(args: &Args, fleet: &Fleet) -> ExitCode {
    match try_many(args, fleet) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}

/// Runs seeds in blocks, each of which is noted once all of it has passed. False if one breaks a promise.
fn try_many(args: &Args, fleet: &Fleet) -> anyhow::Result<bool> {
    let empty = Tally::new(args.world, args.seed);
    let mut all = args.progress.as_ref().map_or(Ok(empty), |path| Tally::load(path, args.world, args.seed))?;
    while all.seeds < args.count {
        let (first, count) = (args.seed + all.seeds, BLOCK.min(args.count - all.seeds));
        let Sum { tally, failure } = fleet.run_all(first, count, args.jobs, args.twice);
        if let Some((seed, reason)) = failure {
            println!("seed {seed}: {reason}");
            if !args.no_shrink {
                tell_fewest(fleet, &args.world.plan(seed));
            }
            return Ok(false);
        }
        all.join(tally);
        if let Some(path) = &args.progress {
            all.store(path)?;
        }
        if args.count > BLOCK {
            eprintln!("{} of {} seeds", all.seeds, args.count);
        }
    }
    println!("{all}");
    let twice = if args.twice { ", and each seed was the same twice" } else { "" };
    println!("no promise was broken{twice}");
    Ok(true)
}

/// Looks for the fewest steps that break a promise, if there are steps, and tells their story.
fn tell_fewest(fleet: &Fleet, plan: &Plan) {
    let fails = |plan: &Plan| fleet.run(plan).is_ok_and(|outcome| outcome.violation.is_some());
    if !fails(plan) {
        return;
    }
    let mut fewest = plan.clone();
    if !plan.steps.is_empty() {
        println!("looking for the fewest of its {} steps that do...", plan.steps.len());
        fewest = shrink(plan, fails);
    }
    prepare();
    let outcome = fleet.kind.run(&fewest, Telling::Aloud);
    let mut which = format!("--world={}", fleet.kind.name());
    if !plan.steps.is_empty() {
        let steps: Vec<String> = fewest.steps.iter().map(|step| step.number.to_string()).collect();
        println!("{} steps suffice: {}", fewest.steps.len(), outcome.violation.unwrap_or_default());
        which = format!("--steps={}", steps.join(","));
    }
    println!("run it again: cargo run --profile tested -p sim -- {} {which} --trace", plan.seed);
}

/// Shows how many seeds each planted bug takes.
fn find_bugs(args: &Args, fleet: &Fleet) -> ExitCode {
    let mut missed = 0;
    for bug in Bug::ALL {
        let fleet = Fleet { bug: Some(format!("{bug:?}")), ..fleet.clone() };
        let Sum { failure, .. } = fleet.run_all(args.seed, args.count, args.jobs, false);
        match failure {
            Some((seed, reason)) => println!("{bug:?}: after {} seeds: {reason}", seed - args.seed + 1),
            None => {
                missed += 1;
                println!("{bug:?}: not in {} seeds", args.count);
            }
        }
    }
    println!("{} of {} bugs found", Bug::ALL.len() - missed, Bug::ALL.len());
    if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plant(bug: Option<&str>) -> Result<(), String> {
    let Some(name) = bug else { return Ok(()) };
    let found = Bug::ALL.iter().find(|bug| format!("{bug:?}") == name);
    match found {
        Some(bug) if fault::CAN_BE_PLANTED => fault::plant(&[*bug]),
        Some(_) => return Err("this build cannot have bugs: it needs debug assertions".to_owned()),
        None => return Err(format!("no such bug; there are {:?}", Bug::ALL)),
    }
    Ok(())
}
