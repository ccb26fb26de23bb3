//! A crate's own `clippy.toml` replaces the workspace's: it may omit calls for files, and nothing else. Each library
//! and each program says in its root that it keeps to the seams: lints of the workspace cannot leave out tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

/// What a root says.
const DENIED: &str = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]";
/// What the root of a crate says that is for tests or tools only.
const ALLOWED: &str = "#![allow(clippy::disallowed_methods";

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Lists {
    disallowed_methods: Vec<Method>,
}

#[derive(Deserialize)]
struct Method {
    path: String,
}

/// One finding for each call that the workspace at `root` denies and one of its crates does not, or vice versa.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let Some(everywhere) = denied(root)? else { return Ok(Vec::new()) };
    let mut findings = Vec::new();
    for dir in crates(root)? {
        let Some(here) = denied(&dir)? else { continue };
        let file = dir.strip_prefix(root).unwrap_or(&dir).join("clippy.toml");
        for path in everywhere.symmetric_difference(&here) {
            findings.push(format!("{}: {path} is denied here or in clippy.toml, not in both", file.display()));
        }
    }
    Ok(findings)
}

/// One finding for each root of a library or program below `root` that does not say that it keeps to the seams, or that
/// it need not.
pub(crate) fn check_roots(root: &Path) -> Result<Vec<String>> {
    let mut findings = Vec::new();
    for file in crates(root)?.iter().flat_map(|dir| roots(&dir.join("src"))) {
        let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        let name = file.strip_prefix(root).unwrap_or(&file).display();
        if !text.contains(DENIED) && !text.contains(ALLOWED) {
            findings.push(format!("{name}: a root of a crate needs the line {DENIED}"));
        }
    }
    Ok(findings)
}

/// The roots of the library and the programs whose sources are in `src`.
fn roots(src: &Path) -> Vec<PathBuf> {
    let programs = std::fs::read_dir(src.join("bin")).into_iter().flatten().flatten().map(|entry| entry.path());
    let programs = programs.map(|path| if path.is_dir() { path.join("main.rs") } else { path });
    let all = [src.join("lib.rs"), src.join("main.rs")].into_iter().chain(programs);
    let mut found: Vec<PathBuf> = all.filter(|path| path.is_file()).collect();
    found.sort();
    found
}

/// Directories that may contain a crate: those at the root, and those in `libs`.
fn crates(root: &Path) -> Result<Vec<PathBuf>> {
    let mut dirs = Vec::new();
    for parent in [root.to_owned(), root.join("libs")].iter().filter(|dir| dir.is_dir()) {
        for entry in std::fs::read_dir(parent).with_context(|| format!("reading {}", parent.display()))? {
            dirs.push(entry.with_context(|| format!("reading {}", parent.display()))?.path());
        }
    }
    dirs.sort();
    Ok(dirs)
}

/// The calls that the list in `dir` denies, except those for files; none if there is no list.
fn denied(dir: &Path) -> Result<Option<BTreeSet<String>>> {
    let file = dir.join("clippy.toml");
    if !file.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let lists: Lists = toml::from_str(&text).with_context(|| file.display().to_string())?;
    let paths = lists.disallowed_methods.into_iter().map(|method| method.path);
    Ok(Some(paths.filter(|path| !path.contains("::fs::")).collect()))
}
