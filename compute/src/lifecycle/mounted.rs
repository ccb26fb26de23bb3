//! The file system of a compute: a separate process, which outlives the command that started it.

use std::path::PathBuf;
use std::time::Duration;

use super::{LifecycleError, Options, Result};
use crate::layout::Layout;
use crate::supervisor::health::Health;
use crate::supervisor::launch;

/// Name of the program.
const PROGRAM: &str = "compute-fs";

/// Mounts the data directory unless it is mounted: after a crash of Postgres it still is. Returns whether it had to.
pub(super) fn mount(layout: &Layout, options: &Options) -> Result<bool> {
    if let Ok(Some(pid)) = launch::supervisor(layout) {
        if let Health::Trouble(what) = Health::of(layout) {
            return Err(LifecycleError::Refused(format!("{}: {what}", layout.data().display())));
        }
        return match launch::is_visible(layout) {
            Ok(true) => Ok(false),
            _ => Err(LifecycleError::Refused(format!(
                "{} is not mounted here, but in the mount namespace of process {pid}: go there with `nsenter \
                 --preserve-credentials --user --mount --target {pid}`. If somebody has unmounted it by hand, end it \
                 with destroy --force",
                layout.data().display()
            ))),
        };
    }
    let program = program();
    let ahead: Vec<String> = options.ahead_mib.iter().map(|mib| format!("--ahead-mib={mib}")).collect();
    let started = launch::start(&program, layout, &ahead);
    let started = started.map_err(|error| {
        LifecycleError::Refused(format!(
            "{}: {error}. Without it all relations can be copied: --copy",
            program.display()
        ))
    })?;
    launch::reap(started);
    Ok(true)
}

/// Stops the file system if it runs: cleanly, or by force if that takes longer than `limit`. Call it only after
/// Postgres has ended, when everything is synced.
pub(super) fn unmount(layout: &Layout, limit: Duration) -> Result<()> {
    let failed = |error| LifecycleError::Server(format!("{PROGRAM}: {error}"));
    if let Err(error) = launch::stop(layout, limit) {
        tracing::warn!("{PROGRAM}: {error}: it is ended by force");
        return force(layout);
    }
    // Its supervisor may have been killed and left its mount and daemon behind.
    match (Health::of(layout), launch::is_visible(layout)) {
        (Health::Down, Ok(false)) => Ok(()),
        _ => launch::clear(layout).map_err(failed),
    }
}

/// Kills the file system and all processes that use it, whatever state they are in.
pub(super) fn force(layout: &Layout) -> Result<()> {
    launch::force(layout).map_err(|error| LifecycleError::Server(format!("{PROGRAM}: {error}")))
}

/// What is wrong with the file system, to append to an error message; empty if it is healthy.
pub(super) fn trouble(layout: &Layout) -> String {
    match Health::of(layout) {
        Health::Trouble(what) => format!(": {what}"),
        Health::Well | Health::Down => String::new(),
    }
}

/// The program next to this one, or by name through `PATH`.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    own.filter(|own| own.is_file()).unwrap_or_else(|| PROGRAM.into())
}
