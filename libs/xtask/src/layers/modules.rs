//! Ranks between the modules of one crate, from its sources.

use std::collections::BTreeMap;
use std::path::Path;

use super::definitions::Definitions;
use super::table::{Sibling, Table, Verdict, check_siblings, judge};
use super::targets::Target;
use crate::source::Module;
use crate::source::paths::PathRef;

/// The table's name for a crate's root, if modules use its definitions. A root that is not listed is above all.
const ROOT: &str = "crate";

/// The ranks of a library's or a program's modules.
pub(crate) struct Ranks<'a> {
    /// Rank of each listed module, ordered as text.
    pub(crate) of: BTreeMap<String, String>,
    /// Modules whose children are listed individually.
    pub(crate) split: &'a [String],
    pub(crate) siblings: &'a [Sibling],
}

/// Counts of checked items.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) modules: usize,
    /// Modules without a rank of their own, of a parent, or as root above all others.
    pub(crate) unranked: usize,
    /// Imports from one ranked module to another.
    pub(crate) imports: usize,
}

/// Checks one library or program.
pub(crate) fn check(
    root: &Path,
    target: &Target<'_>,
    ranks: &Ranks<'_>,
    table: &Table,
    findings: &mut Vec<String>,
) -> Seen {
    let modules = &target.modules;
    let checker = Checker { root, target, ranks, table, definitions: Definitions::new(modules) };
    checker.check_table(findings);
    let mut used = vec![false; ranks.siblings.len()];
    let mut imports = 0;
    for module in modules {
        for path in &module.paths {
            imports += usize::from(checker.check_path(module, path, &mut used, findings));
        }
    }
    check_siblings(ranks.siblings, &used, findings);
    findings.dedup();
    let unranked = modules.iter().filter(|module| !module.path.is_empty() && checker.unit(&module.path).is_none());
    Seen { modules: modules.len(), unranked: unranked.count(), imports }
}

struct Checker<'a> {
    root: &'a Path,
    target: &'a Target<'a>,
    ranks: &'a Ranks<'a>,
    table: &'a Table,
    definitions: Definitions<'a>,
}

impl Checker<'_> {
    /// Checks that the table names every module that needs a rank, and no others.
    fn check_table(&self, findings: &mut Vec<String>) {
        let title = self.target.title();
        for module in &self.target.modules {
            let Some((_, parent)) = module.path.split_last() else { continue };
            let needs_rank = parent.is_empty() || self.ranks.split.contains(&parent.join("::"));
            let name = module.path.join("::");
            if needs_rank && !self.ranks.of.contains_key(&name) {
                let place = self.place(module, module.line);
                findings.push(format!("{place}: module {name} of {title} has no rank in docs/layers.toml"));
            }
        }
        for name in self.ranks.of.keys().chain(self.ranks.split) {
            let path: Vec<String> = name.split("::").filter(|name| *name != ROOT).map(str::to_owned).collect();
            if !self.definitions.has(&path) {
                findings.push(format!("docs/layers.toml: {title} has no module {name}"));
            }
        }
    }

    /// Judges one path of a module; true if it leads from one ranked module to another.
    fn check_path(&self, module: &Module, path: &PathRef, used: &mut [bool], findings: &mut Vec<String>) -> bool {
        let Some((mut target, _)) = self.definitions.written(&module.path, path) else {
            self.check_crate(module, path, findings);
            return false;
        };
        // A root that is not listed may name everything.
        let Some((from, from_rank)) = self.unit(&module.path) else { return false };
        // A module may re-export its children's definitions: that is not a use.
        if path.handed_on.is_some() && target.len() > module.path.len() && target.starts_with(&module.path) {
            return false;
        }
        let place = self.place(module, path.line);
        let written = path.segments.join("::");
        if target.is_empty() {
            // The root re-exports the definitions of others: the path uses those, or another crate.
            let Some(definition) = self.definitions.find(&module.path, path) else { return false };
            target = definition;
        }
        if target.is_empty() && self.unit(&target).is_none() {
            findings.push(format!(
                "{place}: {from} (rank {from_rank}) uses {written} of the crate's root, which is above all modules \
                 unless the table lists it as {ROOT}"
            ));
            return true;
        }
        // Modules without a rank were reported when the table was checked.
        let Some((to, to_rank)) = self.unit(&target) else { return false };
        if from == to {
            return false;
        }
        match judge((&from, from_rank), (&to, to_rank), self.ranks.siblings) {
            Verdict::Down => {}
            Verdict::ListedSibling(at) => used[at] = true,
            verdict => findings.push(format!(
                "{place}: {from} (rank {from_rank}) may not use {to} (rank {to_rank}): {written} points {}",
                if verdict == Verdict::Up { "up" } else { "sideways" },
            )),
        }
        true
    }

    /// A path into another crate of ours must lead down too, even if the manifest would allow it.
    fn check_crate(&self, module: &Module, path: &PathRef, findings: &mut Vec<String>) {
        let Some(first) = path.segments.first() else { return };
        if path.segments.len() < 2 && !path.is_use && !path.leading_colon {
            return;
        }
        let own = &self.target.member.name;
        let Some(own_rank) = self.table.crates.get(own) else { return };
        let other = self.table.crates.iter().find(|(name, _)| &name.replace('-', "_") == first);
        let Some((name, rank)) = other.filter(|(name, _)| *name != own) else { return };
        if matches!(judge((own, own_rank), (name, rank), &self.table.sibling), Verdict::Sideways | Verdict::Up) {
            let place = self.place(module, path.line);
            findings.push(format!("{place}: {own} (rank {own_rank}) may not use crate {name} (rank {rank})"));
        }
    }

    /// The nearest listed module at or above `path`, with its rank; the root is above none.
    fn unit(&self, path: &[String]) -> Option<(String, &String)> {
        let root = path.is_empty().then(|| ROOT.to_owned());
        let names = (1..=path.len()).rev().map(|length| path[..length].join("::"));
        root.into_iter().chain(names).find_map(|name| self.ranks.of.get(&name).map(|rank| (name, rank)))
    }

    fn place(&self, module: &Module, line: usize) -> String {
        let file = module.file.strip_prefix(self.root).unwrap_or(&module.file);
        format!("{}:{line}", file.display())
    }
}
