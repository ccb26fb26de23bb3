//! Starts a compute.

use std::time::Duration;

use pq_proto::client::Client;
use pq_proto::sqlstate::SqlState;

use super::config::{ComputeConfig, Storage, Subscriptions};
use super::options::{Changes, Options};
use super::server::{self, State};
use super::{Control, LifecycleError, Result, access, millis, mounted, reader, settings, subscriptions};
use crate::layout::Layout;
use crate::supervisor::launch;

/// How a compute is started.
#[derive(Clone, Debug)]
pub struct StartOptions {
    /// Changes since its last start, which persist.
    pub changes: Changes,
    /// Take over from a compute whose host is lost.
    pub replace: bool,
    /// How long Postgres may take to answer.
    pub timeout: Duration,
}

/// A compute that answers queries.
#[derive(Clone, Debug)]
pub struct Started {
    /// Connection string for this machine.
    pub connstr: String,
    /// Time from the start of the process to the first answer, in milliseconds.
    pub ready_ms: u64,
    /// Logical replication subscriptions that were disabled, as `database.subscription`.
    pub disabled_subscriptions: Vec<String>,
    /// Whether a pageserver receives its WAL, if it writes any.
    pub is_followed: bool,
}

/// How long the pageserver may take to connect for WAL after it was told where.
const FOLLOWED: Duration = Duration::from_secs(10);
/// Polling interval for that.
const LOOK: Duration = Duration::from_millis(10);

/// Starts a compute and waits until it answers.
pub fn start(layout: &Layout, options: &StartOptions, control: &impl Control) -> Result<Started> {
    let before = ComputeConfig::load(layout)?;
    if let State::Running(pid) = State::of(&before, layout) {
        return Err(LifecycleError::Refused(format!(
            "{0} runs already, as process {pid}: with `set {0}` it is told something else",
            before.name
        )));
    }
    reader::check(&before, layout)?;
    let mut compute = before.clone();
    compute.change(options.changes.clone())?;
    access::close(&compute, layout)?;
    compute.store_origin(layout)?;
    let mut settings = settings::all(&compute, &layout.upper(), &server::sockets(&compute, layout))?;
    settings.extend(access::settings(&compute, layout)?);
    if !compute.read_only {
        register(&mut compute, layout, &before.options, options.replace, control)?;
    }
    let is_mounted = compute.storage == Storage::Lazy && mounted::mount(layout, &compute.options)?;
    let started = run(&mut compute, layout, &settings, options.timeout, control);
    if started.is_err() && is_mounted && !matches!(State::of(&compute, layout), State::Running(_)) {
        mounted::unmount(layout, options.timeout)?;
    }
    let started = started?;
    // Options with which it cannot start are not kept.
    if compute != before {
        compute.store(layout)?;
    }
    Ok(started)
}

/// Registers it as the writer of its branch.
fn register(
    compute: &mut ComputeConfig,
    layout: &Layout,
    options: &Options,
    replace: bool,
    control: &impl Control,
) -> Result<()> {
    let begin = compute.released_lsn.unwrap_or(compute.boot_lsn);
    control.register(compute, begin, &reached_by(compute, layout), replace).map_err(LifecycleError::Control)?;
    if compute.released_lsn.take().is_some() {
        ComputeConfig { options: options.clone(), ..compute.clone() }.store(layout)?;
    }
    Ok(())
}

/// How the pageserver reaches it.
pub(super) fn reached_by(compute: &ComputeConfig, layout: &Layout) -> String {
    compute.options.connstr.clone().unwrap_or_else(|| server::connstr(compute, layout))
}

/// Runs the server on files that are in place.
fn run(
    compute: &mut ComputeConfig,
    layout: &Layout,
    settings: &[String],
    limit: Duration,
    control: &impl Control,
) -> Result<Started> {
    server::forget_crashed(compute, layout, limit)?;
    let disabled_subscriptions = subscriptions::settle(compute, layout, settings, limit)?;
    compute.subscriptions = Subscriptions::Settled;
    let started = env::clock::now();
    let mut process = server::launch(compute, layout, settings)?;
    let answered = server::runtime()?.block_on(async {
        let mut client = server::ready(compute, layout, &mut process, limit).await?;
        if !compute.read_only {
            keep_wal(compute, layout, &mut client, limit).await?;
        }
        client.close().await;
        Ok::<_, LifecycleError>(())
    });
    launch::reap(process);
    answered?;
    reader::guard(compute, layout)?;
    let ready_ms = millis(env::clock::now().saturating_duration_since(started));
    let is_followed = compute.read_only || await_follower(compute, layout, limit.min(FOLLOWED), control);
    Ok(Started { connstr: server::connstr(compute, layout), ready_ms, disabled_subscriptions, is_followed })
}

/// Waits until the pageserver receives its WAL; returns whether it does. The pageserver has tried in vain while
/// Postgres started, and would retry after a growing pause; registering the address again makes it connect at once.
fn await_follower(compute: &ComputeConfig, layout: &Layout, limit: Duration, control: &impl Control) -> bool {
    if let Err(error) = control.register(compute, compute.boot_lsn, &reached_by(compute, layout), false) {
        tracing::warn!("{}: {error}", compute.name);
    }
    let asked = async {
        let mut client = server::connect(compute, layout).await?;
        loop {
            match server::wal_of(compute, &mut client).await {
                Ok(wal) if !wal.is_followed => env::clock::sleep(LOOK).await,
                other => return other.map(drop),
            }
        }
    };
    let Ok(runtime) = server::runtime() else { return false };
    runtime.block_on(async { matches!(env::clock::timeout(limit, asked).await, Ok(Ok(()))) })
}

/// From now on WAL that the pageserver has not received is kept, whatever the pageserver is doing.
async fn keep_wal(compute: &ComputeConfig, layout: &Layout, client: &mut Client, limit: Duration) -> Result<()> {
    let slot = compute.slot();
    let sql = format!(
        "SELECT pg_create_physical_replication_slot('{slot}', true) WHERE NOT EXISTS \
         (SELECT FROM pg_replication_slots WHERE slot_name = '{slot}')"
    );
    let made = env::clock::timeout(limit, client.simple_query(&sql)).await;
    let late = |_| LifecycleError::Server(format!("{} does not answer{}", compute.name, mounted::trouble(layout)));
    match made.map_err(late)? {
        // The pageserver may have created it first.
        Err(error) if error.sqlstate() != Some(SqlState::DUPLICATE_OBJECT) => {
            Err(LifecycleError::Server(format!("cannot make the replication slot {slot}: {error}")))
        }
        _ => Ok(()),
    }
}
