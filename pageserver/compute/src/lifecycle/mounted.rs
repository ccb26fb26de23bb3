//! The file system of a compute: a process of its own, which outlives the command that started it.

use std::path::PathBuf;
use std::time::Duration;

use super::{LifecycleError, Result};
use crate::layout::Layout;
use crate::supervisor::launch;

/// The program.
const PROGRAM: &str = "compute-fs";
/// For it to end.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the data directory usable, if it is not already: after a crash of Postgres it still is.
pub(super) fn mount(layout: &Layout) -> Result<()> {
    if let Ok(Some(_)) = launch::supervisor(layout) {
        return Ok(());
    }
    let program = program();
    let started = launch::start(&program, layout, &[]);
    started.map(super::server::reap).map_err(|error| {
        LifecycleError::Refused(format!(
            "{}: {error}. Without it all relations can be copied: --copy",
            program.display()
        ))
    })
}

/// Ends it, if it runs.
pub(super) fn unmount(layout: &Layout) -> Result<()> {
    launch::stop(layout, PATIENCE).map_err(|error| LifecycleError::Server(format!("{PROGRAM}: {error}")))
}

/// Beside this program, or where programs are looked for.
fn program() -> PathBuf {
    let own = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.join(PROGRAM)));
    own.filter(|own| own.is_file()).unwrap_or_else(|| PROGRAM.into())
}
