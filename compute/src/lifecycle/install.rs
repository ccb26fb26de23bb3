//! Finds the Postgres programs by major version.

use std::path::{Path, PathBuf};

use super::{LifecycleError, Result};

/// The directory with the programs of version `major`: `given`, the usual package location, or one of `PATH`. It must
/// contain a server of that version.
pub fn find(major: u32, given: Option<&Path>) -> Result<PathBuf> {
    let candidates = match given {
        Some(dir) => vec![dir.to_owned()],
        None => candidates(major),
    };
    if let Some(dir) = candidates.iter().find(|dir| version_of(dir) == Some(major)) {
        return Ok(dir.clone());
    }
    let tried: Vec<String> = candidates.iter().map(|dir| dir.display().to_string()).collect();
    Err(LifecycleError::Refused(format!(
        "no PostgreSQL {major}, which the branch is of, in {}: say with --pg-bin where its programs are",
        tried.join(", ")
    )))
}

fn candidates(major: u32) -> Vec<PathBuf> {
    let cache = match rustix::process::geteuid().is_root() {
        true => "/var/cache".to_owned(),
        false => format!("{}/.cache", std::env::var("HOME").unwrap_or_default()),
    };
    let own = std::env::var("PG_SERVERS_DIR").unwrap_or_else(|_| format!("{cache}/pageserver-postgres"));
    let mut all: Vec<PathBuf> = [
        format!("/usr/lib/postgresql/{major}/bin"),
        format!("/usr/pgsql-{major}/bin"),
        format!("/opt/homebrew/opt/postgresql@{major}/bin"),
        format!("{own}/{major}/bin"),
        "/usr/local/pgsql/bin".to_owned(),
    ]
    .map(PathBuf::from)
    .into();
    all.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    all
}

fn version_of(dir: &Path) -> Option<u32> {
    let program = dir.join("postgres");
    if !program.is_file() {
        return None;
    }
    let said = std::process::Command::new(program).arg("--version").output().ok()?;
    parse(&String::from_utf8_lossy(&said.stdout))
}

/// Parses a string such as `postgres (PostgreSQL) 15.20 (Debian ...)`.
fn parse(text: &str) -> Option<u32> {
    let number = text.split_once("(PostgreSQL) ")?.1;
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        assert_eq!(parse("postgres (PostgreSQL) 15.20 (Debian 15.20-0+deb12u1)\n"), Some(15));
        assert_eq!(parse("postgres (PostgreSQL) 18beta1"), Some(18));
        assert_eq!(parse("something else"), None);
    }

    #[test]
    fn what_is_missing_is_told() {
        let error = find(15, Some(Path::new("/nonexistent"))).unwrap_err().to_string();
        assert!(error.contains("PostgreSQL 15") && error.contains("/nonexistent"), "{error}");
    }
}
