//! The rank check: every crate, and every module of a crate with inner ranks, may use only what is ranked below it; and
//! no modules of any crate, program or library, may use each other in a circle.
//!
//! The table is `docs/layers.toml`. Four rules: a crate depends on crates of lower rank; a module imports from modules
//! of lower rank of its own crate; two of the same rank only where the table names the pair and says why; the modules
//! of each crate can be put in an order in which each uses only earlier ones. An import is judged by the path as
//! written, so naming a type through a parent's re-export counts as using the parent: that is how cycles hide.

mod crates;
mod cycles;
mod modules;
mod table;
#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::{Context, Result};

use table::Table;

/// Checks the workspace at `root`; gives the findings, in order, and a summary line.
pub(crate) fn check(root: &Path) -> Result<(Vec<String>, String)> {
    let file = root.join("docs/layers.toml");
    let text = std::fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
    let table: Table = toml::from_str(&text).with_context(|| format!("{}", file.display()))?;
    let members = crates::members(root)?;
    let mut findings = Vec::new();
    let dependencies = crates::check(&table, &members, &mut findings);
    let mut modules = 0;
    let mut imports = 0;
    for (name, inner) in &table.inner {
        let Some(member) = members.iter().find(|member| &member.name == name) else {
            findings.push(format!("docs/layers.toml: [inner.{name}] is not a crate of the workspace"));
            continue;
        };
        let seen = modules::check(root, member, inner, &table.crates, &mut findings)?;
        modules += seen.modules;
        imports += seen.imports;
    }
    let seen = cycles::check(root, &members, &table.cycles, &mut findings)?;
    let summary = format!(
        "layers: {} crates, {dependencies} dependencies, {modules} ranked modules, {imports} imports between them; \
         {} modules in all, largest cycle {}; {} findings",
        members.len(),
        seen.modules,
        seen.largest,
        findings.len()
    );
    Ok((findings, summary))
}
