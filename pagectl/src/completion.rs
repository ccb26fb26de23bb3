//! `pagectl completion` and `pagectl man`: completions for shells and man pages, from the commands' own definitions.

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use clap::{Args, Command};
use clap_complete::Shell;

use crate::output;

/// Where man pages go.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// An existing directory, such as /usr/local/share/man/man1.
    dir: Utf8PathBuf,
}

/// Prints completions of `command` for a shell.
pub(crate) fn completion(mut command: Command, shell: Shell) {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end());
}

/// Writes a man page for `command` and for each command below it.
///
/// # Errors
/// If the directory is missing or cannot be written to.
pub(crate) fn man(command: Command, args: &ManArgs, json: bool) -> anyhow::Result<()> {
    let dir: &Utf8Path = &args.dir;
    clap_mangen::generate_to(command, dir).with_context(|| format!("cannot write man pages to {dir}"))?;
    output::finish(json, &serde_json::json!({ "dir": dir }), format!("man pages are in {dir}: man pagectl"));
    Ok(())
}
