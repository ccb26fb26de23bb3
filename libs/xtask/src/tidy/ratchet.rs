//! `docs/ratchet.toml`: offenders by rule, each with its allowed size.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};

use super::measure::{Measured, Offenders};

/// The rules that `tidy` knows, each with what its size counts.
pub(crate) const RULES: [(&str, &str); 7] = [
    ("file_lines", "non-test lines of a file, over 600"),
    ("function_lines", "lines of a function, over 70"),
    ("long_lines", "lines over 120 columns"),
    ("non_ascii", "lines with a byte that is not ASCII"),
    ("unwrap", "calls of unwrap outside tests"),
    ("marks", "marks of work left undone"),
    ("bare_unsafe", "unsafe without a SAFETY comment"),
];

/// The parsed file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ratchet {
    allowed: Offenders,
}

impl Ratchet {
    /// Parses the file's text; an unknown rule is refused.
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let allowed: Offenders = toml::from_str(text)?;
        for rule in allowed.keys() {
            ensure!(RULES.iter().any(|(name, _)| name == rule), "unknown rule [{rule}]");
        }
        Ok(Self { allowed })
    }

    /// Number of known offenders.
    pub(crate) fn len(&self) -> usize {
        self.allowed.values().map(BTreeMap::len).sum()
    }

    /// One line for each difference between allowed and measured sizes.
    pub(crate) fn compare(&self, measured: &Measured) -> Vec<String> {
        let mut findings = Vec::new();
        for (rule, meaning) in RULES {
            let none = BTreeMap::new();
            let allowed = self.allowed.get(rule).unwrap_or(&none);
            let found = measured.offenders.get(rule).unwrap_or(&none);
            let names: BTreeSet<&String> = allowed.keys().chain(found.keys()).collect();
            for name in names {
                let line = match (allowed.get(name), found.get(name)) {
                    (None, Some(size)) => {
                        format!("{name}: new offender of {rule}: {size}{} ({meaning})", measured.place(rule, name))
                    }
                    (Some(old), Some(size)) if size > old => {
                        format!("{name}: grew in {rule}: {old} -> {size}{} ({meaning})", measured.place(rule, name))
                    }
                    (Some(old), found) if found != Some(old) => format!(
                        "{name}: shrank in {rule}: {old} -> {}; run `xtask tidy --update`",
                        found.copied().unwrap_or(0)
                    ),
                    _ => continue,
                };
                findings.push(line);
            }
        }
        findings
    }

    /// The lowered ratchet: no entry larger than before, none added, and those that are gone removed.
    pub(crate) fn lower_to(&self, measured: &Offenders) -> Self {
        let mut allowed = Offenders::new();
        for (rule, entries) in &self.allowed {
            for (name, old) in entries {
                if let Some(size) = measured.get(rule).and_then(|found| found.get(name)) {
                    allowed.entry(rule.clone()).or_default().insert(name.clone(), *size.min(old));
                }
            }
        }
        Self { allowed }
    }

    /// The file's text, without its header.
    pub(crate) fn print(&self) -> String {
        let mut text = String::new();
        for (rule, meaning) in RULES {
            let Some(entries) = self.allowed.get(rule) else { continue };
            text.push_str(&format!("# {meaning}\n[{rule}]\n"));
            for (name, size) in entries {
                text.push_str(&format!("{name:?} = {size}\n"));
            }
            text.push('\n');
        }
        text
    }
}
