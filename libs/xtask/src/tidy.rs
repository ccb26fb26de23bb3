//! Size ratchets: measured sizes may only shrink.
//!
//! Limits apply to every source of the tree. Whatever exceeds one must be in `docs/ratchet.toml` with its present
//! size: larger or new fails, and smaller or gone fails too until `xtask tidy --update` has lowered the entry. Calls
//! of `expect` have one limit for all sources together, a crate's own list of seams may omit only calls for files, and
//! roots of crates keep to the seams.

mod measure;
mod ratchet;
mod rust;
mod seams;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Result};

use ratchet::Ratchet;

/// Measures the tree at `root` against its ratchet; returns the findings and a summary line.
pub(crate) fn check(root: &Path, update: bool) -> Result<(Vec<String>, String)> {
    let file = root.join("docs/ratchet.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let mut allowed = Ratchet::parse(&text).with_context(|| format!("{}", file.display()))?;
    let measured = measure::tree(root)?;
    if update {
        let lowered = allowed.lower_to(&measured.offenders);
        if lowered != allowed {
            let header: String =
                text.lines().take_while(|line| line.starts_with('#')).map(|l| format!("{l}\n")).collect();
            std::fs::write(&file, format!("{header}\n{}", lowered.print()))
                .with_context(|| format!("writing {}", file.display()))?;
            allowed = lowered;
        }
    }
    let mut findings = allowed.compare(&measured);
    findings.extend(measured.expect_findings());
    findings.extend(seams::check(root)?);
    findings.extend(seams::check_roots(root)?);
    let summary = format!(
        "tidy: {} files, {} non-test lines and {} functions of Rust, {} calls of expect, {} known offenders, \
         {} findings",
        measured.files,
        measured.rust_lines,
        measured.functions,
        measured.expects(),
        allowed.len(),
        findings.len()
    );
    Ok((findings, summary))
}
