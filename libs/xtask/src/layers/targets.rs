//! The libraries and programs of the workspace, each with its modules.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::crates::Member;
use crate::source::{self, Module};

/// A library or a program: what the compiler reads from one root file.
pub(crate) struct Target<'a> {
    pub(crate) member: &'a Member,
    /// The program's name; none for a library.
    pub(crate) program: Option<String>,
    pub(crate) modules: Vec<Module>,
}

impl Target<'_> {
    /// Its name in messages.
    pub(crate) fn title(&self) -> String {
        self.program.as_ref().map_or_else(|| self.member.name.clone(), |program| format!("the program {program}"))
    }

    /// The table that ranks its modules.
    pub(crate) fn table(&self) -> String {
        self.program
            .as_ref()
            .map_or_else(|| format!("[inner.{}]", self.member.name), |name| format!("[programs.{name}]"))
    }
}

/// Reads the sources of all members.
pub(crate) fn read<'a>(root: &Path, members: &'a [Member]) -> Result<Vec<Target<'a>>> {
    let mut targets = Vec::new();
    for member in members {
        for (program, file) in root_files(member, &root.join(&member.dir).join("src"))? {
            targets.push(Target { member, program, modules: source::read_crate(&file)? });
        }
    }
    Ok(targets)
}

/// The root files of a crate's library and programs.
fn root_files(member: &Member, src: &Path) -> Result<Vec<(Option<String>, PathBuf)>> {
    let mut files = vec![(None, src.join("lib.rs")), (Some(member.name.clone()), src.join("main.rs"))];
    let bin = src.join("bin");
    if bin.is_dir() {
        for entry in std::fs::read_dir(&bin).with_context(|| format!("reading {}", bin.display()))? {
            let path = entry.with_context(|| format!("reading {}", bin.display()))?.path();
            let name = path.file_stem().map(|name| name.to_string_lossy().into_owned());
            files.push((name, if path.is_dir() { path.join("main.rs") } else { path }));
        }
    }
    files.retain(|(_, file)| file.is_file());
    files.sort();
    Ok(files)
}
