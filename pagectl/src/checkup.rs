//! What `pagectl doctor` finds, and how it is told.

use serde::Serialize;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    /// As it should be.
    Good,
    /// It works, but not as well, or not everything does.
    Warning,
    /// A server does not start, or loses its purpose.
    Failed,
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    /// What was looked at.
    pub(crate) check: &'static str,
    /// How bad it is.
    pub(crate) state: State,
    /// What was found.
    pub(crate) found: String,
    /// What to do about it; empty if nothing.
    pub(crate) advice: String,
}

impl Finding {
    pub(crate) fn good(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, state: State::Good, found: found.into(), advice: String::new() }
    }

    pub(crate) fn warning(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, state: State::Warning, found: found.into(), advice: advice.into() }
    }

    pub(crate) fn failed(check: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { check, state: State::Failed, found: found.into(), advice: advice.into() }
    }
}

/// The findings, a line each, and below it what to do.
pub(crate) fn told(findings: &[Finding]) -> String {
    let width = findings.iter().map(|finding| finding.check.len()).max().unwrap_or_default();
    let line = |finding: &Finding| {
        let word = match finding.state {
            State::Good => "ok     ",
            State::Warning => "warning",
            State::Failed => "FAILED ",
        };
        let advice = match finding.advice.as_str() {
            "" => String::new(),
            advice => format!("\n{:1$}-> {advice}", "", width + 11),
        };
        format!("{word}  {:width$}  {}{advice}", finding.check, finding.found)
    };
    findings.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_finding_has_its_line_and_its_advice() {
        let findings = [
            Finding::good("kernel", "6.1"),
            Finding::warning("fuse", "no /dev/fuse", "load it"),
            Finding { check: "disk", state: State::Failed, found: "full".to_owned(), advice: String::new() },
        ];
        let expected =
            "ok       kernel  6.1\nwarning  fuse    no /dev/fuse\n                 -> load it\nFAILED   disk    full";
        assert_eq!(told(&findings), expected);
    }
}
