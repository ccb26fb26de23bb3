//! The rank check: every crate, and every module of every library and program, may use only lower ranks; and modules
//! must not form cycles.
//!
//! The table is `docs/layers.toml`. Four rules: a crate depends on crates of lower rank; a module imports from
//! modules of lower rank of its own crate; between equal ranks only the pairs that the table lists with a reason are
//! allowed; the modules of each crate can be ordered so that each uses only earlier ones. An import is judged by the
//! path as written, so naming a type through a parent's re-export counts as using the parent: that is how cycles
//! hide. Only re-exports of a crate's root are followed to the defining module: the root is above all modules.

mod crates;
mod cycles;
mod definitions;
mod modules;
mod table;
mod targets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result};

use modules::{Ranks, Seen};
use table::Table;
use targets::Target;

/// Checks the workspace at `root`; returns the findings, in order, and a summary line.
pub(crate) fn check(root: &Path) -> Result<(Vec<String>, String)> {
    let file = root.join("docs/layers.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("{}", file.display()))?;
    let members = crates::members(root)?;
    let mut findings = Vec::new();
    let dependencies = crates::check(&table, &members, &mut findings);
    let targets = targets::read(root, &members)?;
    let seen = check_modules(root, &table, &targets, &mut findings)?;
    let largest = cycles::check(&members, &targets, &table.cycles, &mut findings);
    let ranked = match seen.unranked {
        0 => "all ranked".to_owned(),
        unranked => format!("{unranked} of them without a rank"),
    };
    let summary = format!(
        "layers: {} crates, {dependencies} dependencies; {} modules, {ranked}, {} imports between ranks, \
         largest cycle {largest}; {} findings",
        members.len(),
        seen.modules,
        seen.imports,
        findings.len()
    );
    Ok((findings, summary))
}

/// Checks every library and program against its ranks, and that the table ranks each of them and no others.
fn check_modules(root: &Path, table: &Table, targets: &[Target<'_>], findings: &mut Vec<String>) -> Result<Seen> {
    let mut all = Seen::default();
    let mut wanted = BTreeSet::new();
    for target in targets {
        let title = target.table();
        let inner = match &target.program {
            None => table.inner.get(&target.member.name),
            Some(program) => table.programs.get(program),
        };
        wanted.insert(title.clone());
        if inner.is_none() && target.modules.len() > 1 {
            findings.push(format!("docs/layers.toml: {title} is missing: {} has modules", target.title()));
            all.modules += target.modules.len();
            all.unranked += target.modules.len() - 1;
            continue;
        }
        let of = match inner {
            Some(inner) => inner.ranks().with_context(|| format!("docs/layers.toml: {title}"))?,
            // A root without modules needs no ranks.
            None => BTreeMap::new(),
        };
        let (split, siblings) = inner.map_or((&[][..], &[][..]), |inner| (&inner.split, &inner.sibling));
        let ranks = Ranks { of, split, siblings };
        let seen = modules::check(root, target, &ranks, table, findings);
        all.modules += seen.modules;
        all.unranked += seen.unranked;
        all.imports += seen.imports;
    }
    let libraries = table.inner.keys().map(|name| format!("[inner.{name}]"));
    let programs = table.programs.keys().map(|name| format!("[programs.{name}]"));
    for title in libraries.chain(programs).filter(|title| !wanted.contains(title)) {
        findings.push(format!("docs/layers.toml: {title} is nothing of the workspace"));
    }
    Ok(all)
}
