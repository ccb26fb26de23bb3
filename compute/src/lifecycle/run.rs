//! Stopping and removal of a compute.

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

/// Between two looks at how far the branch is.
const LOOK: Duration = Duration::from_millis(50);

/// For a server that runs to answer a question.
const ANSWER: Duration = Duration::from_secs(5);

/// For a server to end that is told to at once, if its files can be reached, and if not. Then it is killed.
const QUIT: Duration = Duration::from_secs(3);
const QUIT_IN_TROUBLE: Duration = Duration::from_millis(500);

/// For the file system of a compute that does not run to end.
const UNMOUNT: Duration = Duration::from_secs(60);

/// Bytes of the longest header of a WAL page: by so many the end of WAL may be ahead of the end of the last record.
const PAGE_HEADER: u64 = 40;

/// A compute that was stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All that it wrote is in its branch, which ends at this LSN and may be written by another compute now.
    Released(Lsn),
    /// It only read.
    ReadOnly,
    /// It stays the one that writes its branch: for this reason it is not known to have all.
    Kept(String),
    /// It did not stop in order, and was ended; here is why. What was committed is in its WAL, here: its next start
    /// recovers it.
    Killed(String),
}

/// Stops a compute in order, and waits until its branch has all that it wrote; then the branch is free. One that does
/// not stop, whatever hangs, is ended before `timeout` has passed.
pub fn stop(layout: &Layout, timeout: Duration, control: &impl Control) -> Result<Stopped> {
    let mut compute = ComputeConfig::load(layout)?;
    match State::of(&compute, layout) {
        State::Running(_) => {}
        // It took longer than the last who stopped it has waited.
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

/// A server that stops waits only for those who follow it just then: the page server may be about to come back, also
/// after a crash in which it had got everything. If it does not, there is a limit.
fn catch_up(compute: &ComputeConfig, layout: &Layout, begun: Instant, limit: Duration, control: &impl Control) {
    // Clients may go on writing.
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

/// Waits until the branch has the record that a server writes last, and releases the compute.
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

/// Ends a server that does not stop in order, and all that it waits for.
fn end_at_once(compute: &ComputeConfig, layout: &Layout) -> Result<()> {
    quit(compute, layout);
    mounted::force(layout)
}

/// A server that ends by itself removes its shared memory, which nobody else does. If it does not, there is a limit.
fn quit(compute: &ComputeConfig, layout: &Layout) {
    let is_well = mounted::trouble(layout).is_empty();
    let limit = if is_well { QUIT } else { QUIT_IN_TROUBLE };
    if let Err(error) = server::end(compute, layout, Signal::QUIT, limit) {
        tracing::warn!("{error}: it is killed");
    }
}

/// Removes a compute that does not run; with `force` one that does, too, and what its branch has not got is lost.
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
        // Before anybody else is asked who may not answer. All of it works on files that are to be removed.
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
