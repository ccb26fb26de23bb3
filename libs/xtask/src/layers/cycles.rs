//! Cycles among the modules of each library and program. Every module counts, including a parent and its child;
//! re-exported names are followed to the module that defines them.

use std::collections::{BTreeMap, HashMap};

use petgraph::algo::tarjan_scc;
use petgraph::graph::{DiGraph, NodeIndex};

use super::crates::Member;
use super::definitions::Definitions;
use super::targets::Target;
use crate::source::Module;

/// Checks all libraries and programs; `allowed` are the largest cycles that crates may still have. Returns the number
/// of modules in the largest cycle of all, 0 if there is none.
pub(crate) fn check(
    members: &[Member],
    targets: &[Target<'_>],
    allowed: &BTreeMap<String, usize>,
    findings: &mut Vec<String>,
) -> usize {
    let mut largest = 0;
    for member in members {
        let of_member = targets.iter().filter(|target| target.member.name == member.name);
        let found: Vec<Vec<String>> = of_member.flat_map(|target| cycles(&target.modules)).collect();
        largest = found.iter().map(Vec::len).fold(largest, usize::max);
        judge(&member.name, &found, allowed.get(&member.name).copied().unwrap_or(0), findings);
    }
    for name in allowed.keys().filter(|name| !members.iter().any(|member| &member.name == *name)) {
        findings.push(format!("docs/layers.toml: cycles: {name} is not a crate of the workspace"));
    }
    largest
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

/// Groups of modules in which each uses all others, directly or indirectly.
fn cycles(modules: &[Module]) -> Vec<Vec<String>> {
    let definitions = Definitions::new(modules);
    let mut graph = DiGraph::<&[String], ()>::new();
    let nodes: HashMap<&[String], NodeIndex> =
        modules.iter().map(|module| (module.path.as_slice(), graph.add_node(module.path.as_slice()))).collect();
    for module in modules {
        // A re-export is not a use; whoever names it uses the defining module.
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
