//! A compute that only reads stays so: were its server promoted, what it then wrote would go nowhere.

use super::config::ComputeConfig;
use super::{LifecycleError, Result, io_error};
use crate::layout::Layout;

/// What Postgres takes for a wish to be promoted.
const SIGNAL: &str = "promote";

/// Where the link leads that stands in its place: nothing can be written there, and nothing is found.
const NOWHERE: &str = "this-compute-only-reads/promote";

/// What to do about a reader that was promoted.
pub(super) const PROMOTED: &str = "it was promoted, and what it writes goes nowhere: destroy it. To write, start a \
                                   compute on a branch of that moment (--branch NAME --at LSN)";

/// Whether the server of a compute that only reads has become one that writes: it has removed the file that makes it a
/// standby.
pub(super) fn is_promoted(compute: &ComputeConfig, layout: &Layout) -> bool {
    compute.read_only && !layout.upper().join("standby.signal").exists()
}

/// A reader that was promoted is not started again.
pub(super) fn check(compute: &ComputeConfig, layout: &Layout) -> Result<()> {
    match is_promoted(compute, layout) {
        true => Err(LifecycleError::Refused(format!("{}: {PROMOTED}", compute.name))),
        false => Ok(()),
    }
}

/// Has promotion fail, whoever asks for it: the file cannot be made that asks the server. A server removes what is
/// there when it starts, so this is done each time, when it runs.
pub(super) fn guard(compute: &ComputeConfig, layout: &Layout) -> Result<()> {
    if !compute.read_only {
        return Ok(());
    }
    let link = compute.data_dir(layout).join(SIGNAL);
    let made = std::os::unix::fs::symlink(NOWHERE, &link).or_else(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    });
    let given = made.and_then(|()| compute.owner.as_ref().map_or(Ok(()), |owner| owner.give(&link)));
    given.map_err(io_error(&link))
}
