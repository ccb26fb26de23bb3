//! The file system of a compute: a process of its own, which outlives the command that started it.

use std::path::PathBuf;
use std::time::Duration;

use super::{LifecycleError, Result};
use crate::layout::Layout;
use crate::supervisor::health::Health;
use crate::supervisor::launch;

/// The program.
const PROGRAM: &str = "compute-fs";
/// Makes the data directory usable, if it is not already: after a crash of Postgres it still is. Whether it was not.
pub(super) fn mount(layout: &Layout) -> Result<bool> {
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
    let started = launch::start(&program, layout, &[]);
    let started = started.map_err(|error| {
        LifecycleError::Refused(format!(
            "{}: {error}. Without it all relations can be copied: --copy",
            program.display()
        ))
    })?;
    launch::reap(started);
    Ok(true)
}

/// Ends it, if it runs: in order, or if it has not within `limit`, by force. To be called when Postgres has ended, so
/// that all is synced.
pub(super) fn unmount(layout: &Layout, limit: Duration) -> Result<()> {
    let failed = |error| LifecycleError::Server(format!("{PROGRAM}: {error}"));
    if let Err(error) = launch::stop(layout, limit) {
        tracing::warn!("{PROGRAM}: {error}: it is ended by force");
        return force(layout);
    }
    // Its supervisor may have been killed, and left what it owned.
    match (Health::of(layout), launch::is_visible(layout)) {
        (Health::Down, Ok(false)) => Ok(()),
        _ => launch::clear(layout).map_err(failed),
    }
}

/// Ends it and all that works on it, whatever state they are in.
pub(super) fn force(layout: &Layout) -> Result<()> {
    launch::force(layout).map_err(|error| LifecycleError::Server(format!("{PROGRAM}: {error}")))
}

/// What is wrong with it, to be said with something that has not worked; nothing if it is well.
pub(super) fn trouble(layout: &Layout) -> String {
    match Health::of(layout) {
        Health::Trouble(what) => format!(": {what}"),
        Health::Well | Health::Down => String::new(),
    }
}

/// Beside this program, or where programs are looked for.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    own.filter(|own| own.is_file()).unwrap_or_else(|| PROGRAM.into())
}
