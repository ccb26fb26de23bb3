//! Cycles among the modules of each library and program. Every module counts, also a parent and its child; a name is
//! followed through those who only hand it on, to the module that defines it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use anyhow::Result;
use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::crates::Member;
use super::modules::resolve;
use crate::source::paths::PathRef;
use crate::source::{self, Module};

/// What was looked at.
pub(crate) struct Seen {
    pub(crate) modules: usize,
    /// Modules in the largest cycle of all, 0 if there is none.
    pub(crate) largest: usize,
}

/// Checks all libraries and programs; `allowed` are the largest cycles that crates still have.
pub(crate) fn check(
    root: &Path,
    members: &[Member],
    allowed: &BTreeMap<String, usize>,
    findings: &mut Vec<String>,
) -> Result<Seen> {
    let mut seen = Seen { modules: 0, largest: 0 };
    for member in members {
        let mut found = Vec::new();
        for file in root_files(&root.join(&member.dir)) {
            let modules = source::read_crate(&file)?;
            seen.modules += modules.len();
            found.extend(cycles(&modules));
        }
        let largest = found.iter().map(Vec::len).max().unwrap_or(0);
        seen.largest = seen.largest.max(largest);
        judge(&member.name, &found, allowed.get(&member.name).copied().unwrap_or(0), findings);
    }
    for name in allowed.keys().filter(|name| !members.iter().any(|member| &member.name == *name)) {
        findings.push(format!("docs/layers.toml: cycles: {name} is not a crate of the workspace"));
    }
    Ok(seen)
}

fn judge(name: &str, cycles: &[Vec<String>], allowed: usize, findings: &mut Vec<String>) {
    for cycle in cycles.iter().filter(|cycle| cycle.len() > allowed) {
        let most = if allowed == 0 { String::new() } else { format!(", at most {allowed} may") };
        let (found, cycle) = (cycle.len(), cycle.join(", "));
        findings.push(format!("{name}: {found} modules use each other in a circle{most}: {cycle}"));
    }
    let largest = cycles.iter().map(Vec::len).max().unwrap_or(0);
    if largest < allowed {
        findings
            .push(format!("docs/layers.toml: the largest cycle of {name} has {largest} modules now: lower its entry"));
    }
}

/// Where the compiler begins to read a crate's library and programs.
fn root_files(dir: &Path) -> Vec<PathBuf> {
    let src = dir.join("src");
    let mut files = vec![src.join("lib.rs"), src.join("main.rs")];
    for entry in std::fs::read_dir(src.join("bin")).into_iter().flatten().flatten() {
        let path = entry.path();
        files.push(if path.is_dir() { path.join("main.rs") } else { path });
    }
    files.retain(|file| file.is_file());
    files.sort();
    files
}

/// Groups of modules each of which uses all others of its group, directly or not.
fn cycles(modules: &[Module]) -> Vec<Vec<String>> {
    let definitions = Definitions::new(modules);
    let mut graph = DiGraph::<&[String], ()>::new();
    let nodes: HashMap<&[String], NodeIndex> =
        modules.iter().map(|module| (module.path.as_slice(), graph.add_node(module.path.as_slice()))).collect();
    for module in modules {
        // What is only handed on is not used; whoever names it uses the module that defines it.
        for path in module.paths.iter().filter(|path| path.handed_on.is_none()) {
            let Some(target) = definitions.find(&module.path, path) else { continue };
            if target != module.path {
                graph.update_edge(nodes[module.path.as_slice()], nodes[target.as_slice()], ());
            }
        }
    }
    let name = |node: &NodeIndex| {
        let path = graph[*node];
        if path.is_empty() { "crate".to_owned() } else { path.join("::") }
    };
    let groups = tarjan_scc(&graph).into_iter().filter(|group| group.len() > 1);
    groups
        .map(|group| {
            let mut names: Vec<String> = group.iter().map(name).collect();
            names.sort();
            names
        })
        .collect()
}

/// Which modules there are, and what they hand on of others.
struct Definitions<'a> {
    modules: BTreeSet<&'a [String]>,
    handed_on: HashMap<(&'a [String], &'a str), &'a PathRef>,
}

impl<'a> Definitions<'a> {
    fn new(modules: &'a [Module]) -> Self {
        let handed_on = modules.iter().flat_map(|module| {
            let named = |path: &'a PathRef| Some(((module.path.as_slice(), path.handed_on.as_deref()?), path));
            module.paths.iter().filter_map(named)
        });
        Self { modules: modules.iter().map(|module| module.path.as_slice()).collect(), handed_on: handed_on.collect() }
    }

    /// The module that defines what a path in module `from` names, or none if it is of another crate.
    fn find(&self, from: &[String], path: &PathRef) -> Option<Vec<String>> {
        let (mut from, mut path) = (from.to_vec(), path.clone());
        // A circle of names that are handed on does not compile, yet this must end.
        for _ in 0..self.modules.len() {
            let (target, used) = resolve(&from, &path, |path| self.modules.contains(path))?;
            let next = path.segments.get(used).and_then(|name| self.handed_on.get(&(target.as_slice(), name.as_str())));
            let Some(next) = next else { return Some(target) };
            let mut segments = next.segments.clone();
            segments.extend_from_slice(path.segments.get(used + 1..).unwrap_or_default());
            path = PathRef { segments, ..(*next).clone() };
            from = target;
        }
        None
    }
}
