//! Ranks between the modules of one crate, from its sources.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use super::crates::Member;
use super::table::{Inner, Verdict, check_siblings, judge};
use crate::source::paths::PathRef;
use crate::source::{self, Module};

/// What was looked at.
pub(crate) struct Seen {
    /// Modules with a rank of their own that exist.
    pub(crate) modules: usize,
    /// Imports between two of them.
    pub(crate) imports: usize,
}

/// Checks the library of `member`.
pub(crate) fn check(
    root: &Path,
    member: &Member,
    inner: &Inner,
    crates: &BTreeMap<String, u32>,
    findings: &mut Vec<String>,
) -> Result<Seen> {
    let modules = source::read_crate(&root.join(&member.dir).join("src/lib.rs"))?;
    let tree: BTreeSet<&[String]> = modules.iter().map(|module| module.path.as_slice()).collect();
    let checker = Checker { root, member, inner, crates, tree };
    checker.check_table(&modules, findings);
    let mut used = vec![false; inner.sibling.len()];
    let mut imports = 0;
    for module in &modules {
        for path in &module.paths {
            imports += usize::from(checker.check_path(module, path, &mut used, findings));
        }
    }
    check_siblings(&inner.sibling, &used, findings);
    findings.dedup();
    Ok(Seen { modules: checker.listed_modules(), imports })
}

struct Checker<'a> {
    root: &'a Path,
    member: &'a Member,
    inner: &'a Inner,
    crates: &'a BTreeMap<String, u32>,
    tree: BTreeSet<&'a [String]>,
}

impl Checker<'_> {
    /// The table must name every module that needs a rank, and no other.
    fn check_table(&self, modules: &[Module], findings: &mut Vec<String>) {
        for module in modules {
            let Some((_, parent)) = module.path.split_last() else { continue };
            let needs_rank = parent.is_empty() || self.inner.split.contains(&parent.join("::"));
            let name = module.path.join("::");
            if needs_rank && !self.inner.ranks.contains_key(&name) {
                findings.push(format!(
                    "{}: module {name} of {} has no rank in docs/layers.toml",
                    self.place(module, module.line),
                    self.member.name
                ));
            }
        }
        for name in self.inner.ranks.keys().chain(&self.inner.split) {
            let path: Vec<String> = name.split("::").map(str::to_owned).collect();
            if !self.tree.contains(path.as_slice()) {
                findings.push(format!("docs/layers.toml: {} has no module {name}", self.member.name));
            }
        }
    }

    fn listed_modules(&self) -> usize {
        self.tree.iter().filter(|path| self.inner.ranks.contains_key(&path.join("::"))).count()
    }

    /// Judges one path of a module; true if it leads from one ranked module to another.
    fn check_path(&self, module: &Module, path: &PathRef, used: &mut [bool], findings: &mut Vec<String>) -> bool {
        // The root may name everything: it declares and re-exports.
        let Some((from, from_rank)) = self.unit(&module.path) else { return false };
        let Some((target, _)) = resolve(&module.path, path, |path| self.tree.contains(path)) else {
            self.check_crate(module, path, findings);
            return false;
        };
        // What its own children define, a module may hand on: that uses nothing.
        if path.handed_on.is_some() && target.len() > module.path.len() && target.starts_with(&module.path) {
            return false;
        }
        let place = self.place(module, path.line);
        let written = path.segments.join("::");
        if target.is_empty() {
            findings.push(format!(
                "{place}: {from} (rank {from_rank}) names {written} through the crate's root: \
                 name the module that defines it"
            ));
            return true;
        }
        // A module without a rank was reported when the table was checked.
        let Some((to, to_rank)) = self.unit(&target) else { return false };
        if from == to {
            return false;
        }
        match judge((&from, from_rank), (&to, to_rank), &self.inner.sibling) {
            Verdict::Down => {}
            Verdict::ListedSibling(at) => used[at] = true,
            verdict => findings.push(format!(
                "{place}: {from} (rank {from_rank}) may not use {to} (rank {to_rank}): {written} points {}",
                if verdict == Verdict::Up { "up" } else { "sideways" },
            )),
        }
        true
    }

    /// A path into another crate of ours must go down as well, even where the manifest would allow it.
    fn check_crate(&self, module: &Module, path: &PathRef, findings: &mut Vec<String>) {
        let Some(first) = path.segments.first() else { return };
        if path.segments.len() < 2 && !path.is_use && !path.leading_colon {
            return;
        }
        let Some(own_rank) = self.crates.get(&self.member.name) else { return };
        let other = self.crates.iter().find(|(name, _)| &name.replace('-', "_") == first);
        let Some((name, rank)) = other else { return };
        if name != &self.member.name && rank >= own_rank {
            findings.push(format!(
                "{}: {} (rank {own_rank}) may not use crate {name} (rank {rank})",
                self.place(module, path.line),
                self.member.name
            ));
        }
    }

    /// The nearest listed module at or above `path`, with its rank; none for the crate's root.
    fn unit(&self, path: &[String]) -> Option<(String, &String)> {
        (1..=path.len()).rev().find_map(|length| {
            let name = path[..length].join("::");
            let rank = self.inner.ranks.get(&name)?;
            Some((name, rank))
        })
    }

    fn place(&self, module: &Module, line: usize) -> String {
        let file = module.file.strip_prefix(self.root).unwrap_or(&module.file);
        format!("{}:{line}", file.display())
    }
}

/// The module that a path named in module `from` leads into, and how many of its segments lead there; none if it leads
/// out of the crate.
pub(super) fn resolve(
    from: &[String],
    path: &PathRef,
    exists: impl Fn(&[String]) -> bool,
) -> Option<(Vec<String>, usize)> {
    if path.leading_colon {
        return None;
    }
    let segments = path.segments.as_slice();
    let mut at = from.to_vec();
    let mut used = 0;
    match segments.first()?.as_str() {
        "crate" => {
            at.clear();
            used = 1;
        }
        "self" => used = 1,
        "super" => {
            while segments.get(used).is_some_and(|name| name == "super") {
                at.pop();
                used += 1;
            }
        }
        first => {
            // Only a child module can be meant by a bare name; anything else is a crate or an import.
            at.push(first.to_owned());
            if !exists(&at) {
                return None;
            }
            used = 1;
        }
    }
    while let Some(name) = segments.get(used) {
        at.push(name.clone());
        if !exists(&at) {
            at.pop();
            break;
        }
        used += 1;
    }
    Some((at, used))
}
