//! Output for people and programs: logs on stderr; results and a final summary line on stdout.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use tracing_subscriber::EnvFilter;

/// Logs go to stderr; `RUST_LOG` is the filter, by default warnings and errors.
pub(crate) fn init_logging() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).init();
}

/// The end of a command with a status of its own: with an error, or as the answer.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The exit status.
    pub(crate) status: u8,
    /// What went wrong.
    pub(crate) error: Option<anyhow::Error>,
}

impl Ended {
    pub(crate) fn with(status: u8, error: Option<anyhow::Error>) -> anyhow::Error {
        Self { status, error }.into()
    }
}

impl Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.error {
            Some(error) => write!(f, "{error:#}"),
            None => write!(f, "status {}", self.status),
        }
    }
}

impl std::error::Error for Ended {}

/// Prints a line. If the reader has gone away, that is not an error.
pub(crate) fn line(text: impl Display) {
    let _ = writeln!(io::stdout().lock(), "{text}");
}

/// Prints a line about something that goes on, apart from the result.
pub(crate) fn progress(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Prints the result: as JSON if requested, otherwise the summary line.
pub(crate) fn finish(json: bool, value: &serde_json::Value, summary: impl Display) {
    if json { line(value) } else { line(summary) }
}

/// A progress bar over `total` bytes, hidden if stderr is not a terminal.
pub(crate) fn byte_bar(total: u64) -> ProgressBar {
    const STYLE: &str = "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {msg}";
    let bar = ProgressBar::new(total);
    bar.set_style(ProgressStyle::with_template(STYLE).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// Shows that something long is under way, hidden if stderr is not a terminal.
pub(crate) fn spinner(what: &'static str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    bar.set_message(what);
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
