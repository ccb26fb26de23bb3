//! Changes the options of a compute, whether it runs or not.

use super::config::ComputeConfig;
use super::options::Changes;
use super::server::State;
use super::{Control, LifecycleError, Result, start};
use crate::layout::Layout;

/// Outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// It runs, and some changes take effect only at its next start.
    pub needs_restart: bool,
}

/// Makes persistent changes. A new pageserver address, and how the pageserver reaches the compute, take effect at
/// once.
pub fn set(layout: &Layout, changes: Changes, control: &impl Control) -> Result<Changed> {
    let before = ComputeConfig::load(layout)?;
    let mut compute = before.clone();
    compute.change(changes)?;
    if compute == before {
        return Ok(Changed { needs_restart: false });
    }
    let runs = matches!(State::of(&compute, layout), State::Running(_));
    if runs && !compute.read_only && compute.options.connstr != before.options.connstr {
        let reached_by = start::reached_by(&compute, layout);
        control.register(&compute, compute.boot_lsn, &reached_by, false).map_err(LifecycleError::Control)?;
    }
    compute.store(layout)?;
    compute.store_origin(layout)?;
    let mut at_next_start = compute.options.clone();
    at_next_start.connstr = before.options.connstr.clone();
    at_next_start.sleeps = before.options.sleeps;
    Ok(Changed { needs_restart: runs && at_next_start != before.options })
}
