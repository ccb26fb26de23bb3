//! Runs a plan: on one thread, whose clock stands still while there is something to do.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use camino::Utf8PathBuf;
use pageserver_api::models::virtual_file::{IoEngineKind, IoMode};
use virtual_file::SyncMode;

use crate::plan::{Act, Plan};
use crate::story::{Story, Telling};
use crate::world::World;

/// When every run begins: 2020.
const EPOCH: Duration = Duration::from_secs(1_577_836_800);

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Hash of all that happened, and the number of lines that tell it.
    pub hash: (u64, u64),
    /// The first promise that was broken.
    pub violation: Option<String>,
    /// How much time went by in it.
    pub elapsed: Duration,
}

/// Once for each process that runs plans.
pub fn prepare() {
    virtual_file::init(1024, IoEngineKind::StdFs, IoMode::Buffered, SyncMode::Sync);
    virtual_file::set_fatal_action(virtual_file::FatalAction::Report);
}

/// Runs a plan, in a thread of its own, so that nothing is left in it from another run.
pub fn run(plan: &Plan, telling: Telling) -> Outcome {
    let plan = plan.clone();
    run_world(plan.seed, telling, move |story| Box::pin(async move { perform(&plan, &story).await }))
}

/// What happens in a world, as its story tells.
type Happening = Pin<Box<dyn Future<Output = anyhow::Result<()>>>>;

/// Runs any world, in a thread of its own.
pub(crate) fn run_world(
    seed: u64,
    telling: Telling,
    happen: impl FnOnce(Story) -> Happening + Send + 'static,
) -> Outcome {
    let running = env::spawn::thread("simulation", move || run_here(seed, telling, happen));
    let outcome = running.map(JoinHandle::join);
    let failed = |reason: String| Outcome { hash: (0, 0), violation: Some(reason), elapsed: Duration::ZERO };
    match outcome {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => failed("the run itself panicked".to_owned()),
        Err(error) => failed(format!("it cannot be run: {error}")),
    }
}

fn run_here(seed: u64, telling: Telling, happen: impl FnOnce(Story) -> Happening) -> Outcome {
    env::random::seed_thread(Some(seed));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => panic!("a runtime without drivers cannot be made: {error}"),
    };
    let (story, panics) = runtime.block_on(async {
        env::clock::simulate(SystemTime::UNIX_EPOCH + EPOCH);
        (Story::begin(telling), env::spawn::panics())
    });
    let ended = catch_unwind(AssertUnwindSafe(|| runtime.block_on(happen(story.clone()))));
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => story.violation(format_args!("{error:#}")),
        Err(_) => story.violation(format_args!("the world panicked")),
    }
    for name in new_panics(&panics) {
        story.violation(format_args!("the task {name:?} panicked"));
    }
    let elapsed = runtime.block_on(async { story.elapsed() });
    drop(runtime);
    Outcome { hash: story.hash(), violation: story.broken_promise(), elapsed }
}

fn new_panics(before: &BTreeMap<&'static str, u64>) -> Vec<&'static str> {
    let now = env::spawn::panics();
    now.into_iter().filter(|(name, count)| before.get(name) != Some(count)).map(|(name, _)| name).collect()
}

async fn perform(plan: &Plan, story: &Story) -> anyhow::Result<()> {
    // Of its own, since files of an earlier run may still be open in this thread.
    let root = Utf8PathBuf::from(format!("/simulated/{:016x}", env::random::u64()));
    let clocks_agree = plan.steps.iter().all(|step| step.act != Act::SetClock);
    let mut world = World::begin(plan.setting, story, &root, clocks_agree).await?;
    for step in &plan.steps {
        world.perform(step).await;
        if story.broken_promise().is_some() {
            return Ok(());
        }
    }
    world.end(plan.idle).await;
    Ok(())
}
