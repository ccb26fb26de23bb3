//! `pagectl doctor`: whether this machine has what a pageserver and its computes need, and what to do where it has not.

mod machine;
mod places;

use anyhow::bail;

use crate::args::Common;
use crate::checkup::{self, State};
use crate::output;
use crate::remote::{ServerArgs, reach};

/// Looks at the machine, the working directory and its settings, the bucket, the server, and whom it follows.
///
/// # Errors
/// If a check has failed: for scripts.
pub(crate) fn run(common: &Common, server: &ServerArgs) -> anyhow::Result<()> {
    let mut findings = machine::look();
    findings.extend(places::look(&common.workdir)?);
    findings.extend(reach::look(common, server));
    let count = |state: State| findings.iter().filter(|finding| finding.state == state).count();
    let (failed, warnings) = (count(State::Failed), count(State::Warning));
    let value = serde_json::json!({ "checks": findings, "failed": failed, "warnings": warnings });
    let summary =
        format!("{}\n{} checks, {warnings} warnings, {failed} failed", checkup::told(&findings), findings.len());
    output::finish(common.json, &value, summary);
    if failed > 0 {
        bail!("{failed} checks failed");
    }
    Ok(())
}
