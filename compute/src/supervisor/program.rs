//! Programs that outlive us, and the part of our environment that they inherit.

use std::path::Path;
use std::process::Command;

/// Prefixes of variables that configure our programs.
const OURS: [&str; 2] = ["PAGECTL_", "PAGESERVER_"];

/// Prefixes of variables that any user may inherit.
const FOR_ALL: [&str; 6] = ["PATH", "LANG", "LC_", "TZ", "LD_LIBRARY_PATH", "RUST_"];

/// A program that continues after the caller has ended, as the same user or another one. A superuser of a Postgres
/// can read its environment: so it contains none of the caller's configuration, tokens included, and for another user
/// only what programs need to behave alike.
pub(crate) fn command(program: &Path, as_another: bool) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        let starts = |begin: &&str| name.as_encoded_bytes().starts_with(begin.as_bytes());
        if OURS.iter().any(&starts) || (as_another && !FOR_ALL.iter().any(starts)) {
            command.env_remove(name);
        }
    }
    command
}
