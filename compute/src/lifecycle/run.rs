//! Stops and destroys a compute.

use std::time::{Duration, Instant};

use postgres_formats::control_file::ControlFile;
use rustix::process::Signal;
use utils::lsn::Lsn;

use super::config::ComputeConfig;
use super::server::{self, State};
use super::{Control, LifecycleError, Result, io_error, mounted};
use crate::layout::Layout;
use crate::supervisor::health::Health;
use crate::supervisor::launch;

/// Polling interval for the end of the branch.
const LOOK: Duration = Duration::from_millis(50);

/// How long a running server may take to answer a query.
const ANSWER: Duration = Duration::from_secs(5);

/// How long a server may take for an immediate shutdown, with its files accessible and without. Then it is killed.
const QUIT: Duration = Duration::from_secs(3);
const QUIT_IN_TROUBLE: Duration = Duration::from_millis(500);

/// How long the file system of a stopped compute may take to end.
const UNMOUNT: Duration = Duration::from_secs(60);

/// Size of the longest WAL page header: the end of WAL may be this far beyond the end of the last record.
const PAGE_HEADER: u64 = 40;

/// Outcome of stopping a compute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// Its branch has everything that it wrote, ends at this LSN, and may now get another writer.
    Released(Lsn),
    /// It was read-only.
    ReadOnly,
    /// It stays the writer of its branch: for this reason the branch is not known to have everything.
    Kept(String),
    /// It did not shut down cleanly and was killed, for this reason. What was committed is in its local WAL: its next
    /// start recovers it.
    Killed(String),
}

/// Shuts a compute down and waits until its branch has everything that it wrote; then the branch is free. A compute
/// that does not stop, whatever hangs, is killed before `timeout` has passed.
pub fn stop(layout: &Layout, timeout: Duration, control: &impl Control) -> Result<Stopped> {
    let mut compute = ComputeConfig::load(layout)?;
    match State::of(&compute, layout) {
        State::Running(_) => {}
        // It took longer than a previous stop waited for.
        State::Stopped if Health::of(layout) != Health::Down => {}
        State::Stopped => return Err(LifecycleError::Refused(format!("{} does not run", compute.name))),
        State::Crashed => {
            let name = &compute.name;
            return Err(LifecycleError::Refused(format!("{name} has crashed: start it again, or destroy it")));
        }
    }
    let begun = env::clock::now();
    if !compute.read_only {
        catch_up(&compute, layout, begun, timeout / 2, control);
    }
    let left = |share: Duration| share.saturating_sub(env::clock::now().saturating_duration_since(begun));
    if let Err(error) = server::end(&compute, layout, Signal::INT, left(timeout * 3 / 4)) {
        end_at_once(&compute, layout)?;
        return Ok(Stopped::Killed(error.to_string()));
    }
    mounted::unmount(layout, left(timeout * 9 / 10))?;
    if compute.read_only {
        return Ok(Stopped::ReadOnly);
    }
    match drain(&compute, layout, begun, timeout, control) {
        Ok(end) => {
            compute.released_lsn = Some(end);
            compute.store(layout)?;
            Ok(Stopped::Released(end))
        }
        Err(reason) => Ok(Stopped::Kept(reason)),
    }
}

/// Waits, up to a limit, until the pageserver follows and has the WAL flushed so far. A server that shuts down waits
/// only for the followers connected at that moment, and the pageserver may be about to reconnect, even after a crash
/// in which it had received everything.
fn catch_up(compute: &ComputeConfig, layout: &Layout, begun: Instant, limit: Duration, control: &impl Control) {
    // Clients may continue to write.
    let mut flushed = None;
    while let Ok(wal) = server::wal(compute, layout, limit.min(ANSWER)) {
        let wanted = *flushed.get_or_insert(wal.flushed);
        let has_all = control.end(compute).is_ok_and(|end| end + PAGE_HEADER >= wanted);
        if (has_all && wal.is_followed) || env::clock::now().saturating_duration_since(begun) >= limit {
            return;
        }
        env::clock::pause(LOOK);
    }
}

/// Waits until the branch has the last record that the server wrote, and releases the compute.
fn drain(
    compute: &ComputeConfig,
    layout: &Layout,
    begun: Instant,
    timeout: Duration,
    control: &impl Control,
) -> std::result::Result<Lsn, String> {
    let last = last_checkpoint(layout).map_err(|error| error.to_string())?;
    loop {
        let end = control.end(compute)?;
        if end > last {
            control.release(compute)?;
            return Ok(end);
        }
        if env::clock::now().saturating_duration_since(begun) >= timeout {
            return Err(format!("the branch has WAL up to {end} only, and the last record begins at {last}"));
        }
        env::clock::pause(LOOK);
    }
}

fn last_checkpoint(layout: &Layout) -> Result<Lsn> {
    let path = layout.upper().join("global/pg_control");
    let bytes = std::fs::read(&path).map_err(io_error(&path))?;
    let control =
        ControlFile::decode(&bytes).map_err(|error| LifecycleError::Server(format!("{}: {error}", path.display())))?;
    Ok(control.fields.checkpoint)
}

/// Kills a server that does not shut down cleanly, and everything that it waits for.
fn end_at_once(compute: &ComputeConfig, layout: &Layout) -> Result<()> {
    quit(compute, layout);
    mounted::force(layout)
}

/// Requests an immediate shutdown first: only a server that ends by itself removes its shared memory. There is a
/// limit.
fn quit(compute: &ComputeConfig, layout: &Layout) {
    let is_well = mounted::trouble(layout).is_empty();
    let limit = if is_well { QUIT } else { QUIT_IN_TROUBLE };
    if let Err(error) = server::end(compute, layout, Signal::QUIT, limit) {
        tracing::warn!("{error}: it is killed");
    }
}

/// Ends all processes of a compute that does not stop or has crashed: from now on it writes nothing.
pub fn end_all(layout: &Layout) -> Result<()> {
    let compute = ComputeConfig::load(layout)?;
    if State::of(&compute, layout) == State::Stopped {
        return Ok(());
    }
    end_at_once(&compute, layout)
}

/// Removes a stopped compute; with `force` a running one too, losing what its branch does not have.
pub fn destroy(layout: &Layout, force: bool, control: &impl Control) -> Result<()> {
    let compute = ComputeConfig::load(layout)?;
    match State::of(&compute, layout) {
        State::Running(_) if !force => {
            return Err(LifecycleError::Refused(format!("{} runs: stop it first", compute.name)));
        }
        State::Running(_) => quit(&compute, layout),
        State::Stopped | State::Crashed => {}
    }
    if force {
        // Before asking the pageserver, which may not answer. Everything this kills works on files that are to be
        // removed.
        mounted::force(layout)?;
    }
    if !compute.read_only && compute.released_lsn.is_none() {
        match control.release(&compute) {
            Ok(()) => {}
            Err(reason) if force => tracing::warn!("{} may still be registered: {reason}", compute.name),
            Err(reason) => return Err(LifecycleError::Control(reason)),
        }
    }
    if !force {
        mounted::unmount(layout, UNMOUNT)?;
    }
    remove(&compute, layout)
}

fn remove(compute: &ComputeConfig, layout: &Layout) -> Result<()> {
    if launch::is_visible(layout).map_err(io_error(&layout.data()))? {
        return Err(LifecycleError::Server(format!("{} is still mounted", layout.data().display())));
    }
    let sockets = server::sockets(compute, layout);
    if sockets != layout.root() && sockets.exists() {
        std::fs::remove_dir_all(&sockets).map_err(io_error(&sockets))?;
    }
    std::fs::remove_dir_all(layout.root()).map_err(io_error(layout.root()))
}
