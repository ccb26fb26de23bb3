//! A crate's own `clippy.toml` replaces the workspace's: it may omit calls for files, and nothing else.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

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
