//! Reads Rust sources: the tree of a crate's modules, and the paths that each names.

pub(crate) mod cfg_test;
pub(crate) mod paths;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use paths::PathRef;

/// One module of a crate, inline or in its own file. Modules compiled only for tests are not collected.
pub(crate) struct Module {
    /// Names from the crate's root; empty for the root itself.
    pub(crate) path: Vec<String>,
    /// The file that holds it.
    pub(crate) file: PathBuf,
    /// Line of the file where the module begins, for messages about the module itself.
    pub(crate) line: usize,
    /// Every path it names outside test code.
    pub(crate) paths: Vec<PathRef>,
}

/// Parses `root_file` (`lib.rs` or `main.rs`) and every module that it declares.
pub(crate) fn read_crate(root_file: &Path) -> Result<Vec<Module>> {
    let mut modules = Vec::new();
    let dir = root_file.parent().context("a source file has a directory")?;
    read_file(root_file, dir, Vec::new(), &mut modules)?;
    Ok(modules)
}

fn read_file(file: &Path, child_dir: &Path, path: Vec<String>, out: &mut Vec<Module>) -> Result<()> {
    let ast = parse(file)?;
    read_items(file, child_dir, path, 1, &ast.items, out)
}

/// Parses one file.
pub(crate) fn parse(file: &Path) -> Result<syn::File> {
    let text = std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    syn::parse_file(&text).map_err(|e| anyhow::anyhow!("{}:{}: {e}", file.display(), e.span().start().line))
}

fn read_items(
    file: &Path,
    child_dir: &Path,
    path: Vec<String>,
    line: usize,
    items: &[syn::Item],
    out: &mut Vec<Module>,
) -> Result<()> {
    out.push(Module { path: path.clone(), file: file.to_owned(), line, paths: paths::collect(items) });
    for item in items {
        let syn::Item::Mod(module) = item else { continue };
        if cfg_test::only_in_tests(&module.attrs) {
            continue;
        }
        let name = module.ident.to_string();
        let mut child = path.clone();
        child.push(name.clone());
        let child_line = module.ident.span().start().line;
        match &module.content {
            Some((_, items)) => read_items(file, &child_dir.join(&name), child, child_line, items, out)?,
            None => {
                let child_file = find_file(child_dir, &name)
                    .with_context(|| format!("{}:{child_line}: module {name} has no file", file.display()))?;
                read_file(&child_file, &child_dir.join(&name), child, out)?;
            }
        }
    }
    Ok(())
}

fn find_file(dir: &Path, name: &str) -> Result<PathBuf> {
    for candidate in [dir.join(format!("{name}.rs")), dir.join(name).join("mod.rs")] {
        if candidate.is_file() {
            return Ok(candidate);
        }
    }
    bail!("neither {name}.rs nor {name}/mod.rs in {}", dir.display())
}
