//! Keeps a read-only compute read-only: if its server were promoted, its writes would be lost.

use super::config::ComputeConfig;
use super::{LifecycleError, Result, io_error};
use crate::layout::Layout;

/// File whose presence makes Postgres promote.
const SIGNAL: &str = "promote";

/// Target of the link that takes its place: nothing can be created there, and nothing is found.
const NOWHERE: &str = "this-compute-only-reads/promote";

/// What to do about a reader that was promoted.
pub(super) const PROMOTED: &str = "it was promoted, and what it writes goes nowhere: destroy it. To write, start a \
                                   compute on a branch of that moment (--branch NAME --at LSN)";

/// Whether the server of a read-only compute has been promoted: promotion removes the file that makes it a standby.
pub(super) fn is_promoted(compute: &ComputeConfig, layout: &Layout) -> bool {
    compute.read_only && !layout.upper().join("standby.signal").exists()
}

/// Refuses to start a reader that was promoted.
pub(super) fn check(compute: &ComputeConfig, layout: &Layout) -> Result<()> {
    match is_promoted(compute, layout) {
        true => Err(LifecycleError::Refused(format!("{}: {PROMOTED}", compute.name))),
        false => Ok(()),
    }
}

/// Makes promotion fail, whoever asks for it: the file that requests it cannot be created. A starting server removes
/// whatever has that name, so this must be done after each start.
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
