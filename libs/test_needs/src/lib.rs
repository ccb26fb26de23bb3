//! What tests need of a machine that it may lack: Postgres, root, FUSE. A missing requirement is a failure, because a
//! test that passes without having run proves nothing. With `ALLOW_SKIP=1` such a test ends instead, and is listed in
//! the file that `SKIPPED_TESTS` names, which `make test` shows at its end.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "for tests only, whose notes are no data of the engine")]

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

#[cfg(test)]
mod tests;

/// Where Debian's package installs the Postgres that most tests run.
pub const POSTGRES_15: &str = "/usr/lib/postgresql/15/bin";

/// A requirement that is missing here.
#[derive(Debug, PartialEq, Eq)]
pub struct Missing(String);

impl Missing {
    /// Names what is missing.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Unwraps a requirement, in the test function itself: if it is missing the test fails, or ends if that is allowed.
#[macro_export]
macro_rules! need {
    ($found:expr) => {
        match $crate::found_or_skipped($found, std::any::type_name_of_val(&|| ())) {
            Some(found) => found,
            None => return,
        }
    };
}

/// Requires root: only root can act as several users, or mount.
pub fn root() -> Result<(), Missing> {
    let me = std::fs::metadata("/proc/self").map(|process| process.uid());
    if matches!(me, Ok(0)) { Ok(()) } else { Err(Missing::new("root's rights")) }
}

/// Requires a file or a device.
pub fn file(path: impl AsRef<Path>) -> Result<(), Missing> {
    let path = path.as_ref();
    if path.exists() { Ok(()) } else { Err(Missing::new(path.display().to_string())) }
}

/// The directory of the server programs: the one that `PG_BIN` names, or [`POSTGRES_15`].
pub fn postgres() -> Result<PathBuf, Missing> {
    let bin = std::env::var_os("PG_BIN").filter(|bin| !bin.is_empty());
    let bin = PathBuf::from(bin.unwrap_or_else(|| POSTGRES_15.into()));
    file(bin.join("initdb"))?;
    Ok(bin)
}

/// Implementation of [`need!`]: `place` is the type of a closure in the test.
#[doc(hidden)]
#[track_caller]
pub fn found_or_skipped<T>(found: Result<T, Missing>, place: &str) -> Option<T> {
    let allowed = std::env::var("ALLOW_SKIP").is_ok_and(|value| value == "1");
    match decide(found, place, allowed, &listed_in()) {
        Ok(found) => Some(found),
        Err(line) => {
            // Not with eprint!, which the test harness would capture.
            let _ = std::io::stderr().write_all(format!("SKIPPED {line}").as_bytes());
            None
        }
    }
}

/// The requirement, or the line that was added to the list.
#[track_caller]
fn decide<T>(found: Result<T, Missing>, place: &str, allowed: bool, list: &Path) -> Result<T, String> {
    let missing = match found {
        Ok(found) => return Ok(found),
        Err(missing) => missing,
    };
    let test = place.split("::{{closure}}").next().unwrap_or(place);
    assert!(
        allowed,
        "{test} needs {missing}, which is missing here. `make setup` installs what tests need (scripts/setup.sh); \
         ALLOW_SKIP=1 has tests skipped that lack something, and lists them"
    );
    let line = format!("{test}: {missing}\n");
    if let Err(error) = append(list, &line) {
        panic!("{test} was not run, and cannot be listed in {}: {error}", list.display());
    }
    Err(line)
}

/// Appends in one write, because other tests append at the same time.
fn append(list: &Path, line: &str) -> std::io::Result<()> {
    if let Some(dir) = list.parent() {
        std::fs::create_dir_all(dir)?;
    }
    OpenOptions::new().append(true).create(true).open(list)?.write_all(line.as_bytes())
}

fn listed_in() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap_or(Path::new("/"));
    std::env::var_os("SKIPPED_TESTS").map_or_else(|| workspace.join("target/skipped-tests.txt"), PathBuf::from)
}
