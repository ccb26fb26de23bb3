//! Programs that outlive us, and what of our environment they get.

use std::path::Path;
use std::process::Command;

/// Names of variables begin so that tell our programs what to do.
const OURS: [&str; 2] = ["PAGECTL_", "PAGESERVER_"];

/// And so those that are the same for everybody.
const FOR_ALL: [&str; 6] = ["PATH", "LANG", "LC_", "TZ", "LD_LIBRARY_PATH", "RUST_"];

/// A program that goes on when the caller has ended, as the same user or another one. Who is superuser of a Postgres
/// can read its environment: it has nothing there that the caller was told, tokens among it; another user's has nothing
/// of the caller's but what programs need to work alike.
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
