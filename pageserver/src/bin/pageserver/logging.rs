//! Log lines on stderr, as text or JSON, with the tenant and timeline that they are about.

use std::io::{self, IsTerminal};

use anyhow::Context;
use pageserver::settings::{LogFormat, Settings};
use tracing_subscriber::EnvFilter;

/// Starts logging. Panics are logged as well.
pub(crate) fn init(settings: &Settings) -> anyhow::Result<()> {
    let filter = EnvFilter::try_new(&settings.log_filter)
        .with_context(|| format!("log_filter: {:?} is not a filter", settings.log_filter))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    match settings.log_format {
        LogFormat::Human => builder.with_ansi(io::stderr().is_terminal()).init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    std::panic::set_hook(Box::new(|info| {
        let backtrace = std::backtrace::Backtrace::capture();
        tracing::error!(%backtrace, "panic: {info}");
    }));
    Ok(())
}
