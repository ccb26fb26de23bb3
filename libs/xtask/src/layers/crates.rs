//! Ranks between crates, from their manifests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::table::{Table, Verdict, check_siblings, judge};

/// One crate of the workspace.
pub(crate) struct Member {
    pub(crate) name: String,
    /// Its directory, relative to the workspace root.
    pub(crate) dir: PathBuf,
    /// Names of all its normal and build dependencies, whether ours or not.
    pub(crate) dependencies: Vec<String>,
    /// Text of its manifest, to find the line of a dependency.
    manifest: String,
}

#[derive(Deserialize)]
struct WorkspaceManifest {
    workspace: Workspace,
}

#[derive(Deserialize)]
struct Workspace {
    members: Vec<String>,
    #[serde(default)]
    dependencies: Dependencies,
}

type Dependencies = BTreeMap<String, toml::Value>;

#[derive(Deserialize)]
struct Manifest {
    package: Package,
    #[serde(flatten)]
    always: Tables,
    /// Dependencies of some platforms only, by `cfg(..)` or triple.
    #[serde(default)]
    target: BTreeMap<String, Tables>,
}

/// Dev-dependencies are omitted: nobody depends on a crate through its tests.
#[derive(Default, Deserialize)]
struct Tables {
    #[serde(default)]
    dependencies: Dependencies,
    #[serde(default, rename = "build-dependencies")]
    build_dependencies: Dependencies,
}

#[derive(Deserialize)]
struct Package {
    name: String,
}

/// Reads the manifests of all members.
pub(crate) fn members(root: &Path) -> Result<Vec<Member>> {
    let workspace: WorkspaceManifest = toml::from_str(&read(&root.join("Cargo.toml"))?).context("Cargo.toml")?;
    let Workspace { members, dependencies } = workspace.workspace;
    members.iter().map(|dir| member(root, dir, &dependencies)).collect()
}

fn member(root: &Path, dir: &str, shared: &Dependencies) -> Result<Member> {
    let file = root.join(dir).join("Cargo.toml");
    let text = read(&file)?;
    let manifest: Manifest = toml::from_str(&text).with_context(|| file.display().to_string())?;
    let tables = std::iter::once(manifest.always).chain(manifest.target.into_values());
    let all = tables.flat_map(|tables| tables.dependencies.into_iter().chain(tables.build_dependencies));
    let dependencies = all.map(|(key, value)| package_name(key, &value, shared)).collect();
    Ok(Member { name: manifest.package.name, dir: PathBuf::from(dir), dependencies, manifest: text })
}

/// The package of a dependency, which may be renamed here or in the workspace: `alias = { package = "real" }`.
fn package_name(key: String, value: &toml::Value, shared: &Dependencies) -> String {
    let inherited = value.get("workspace").and_then(toml::Value::as_bool) == Some(true);
    let written = if inherited { shared.get(&key) } else { Some(value) };
    let real = written.and_then(|value| value.get("package")).and_then(toml::Value::as_str);
    real.map_or(key, str::to_owned)
}

fn read(file: &Path) -> Result<String> {
    std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))
}

/// Checks the dependencies of all members; returns how many there are between crates of the workspace.
pub(crate) fn check(table: &Table, members: &[Member], findings: &mut Vec<String>) -> usize {
    for name in table.crates.keys() {
        if !members.iter().any(|member| &member.name == name) {
            findings.push(format!("docs/layers.toml: crate {name} has a rank but is not in the workspace"));
        }
    }
    let mut used = vec![false; table.sibling.len()];
    let mut count = 0;
    for member in members {
        let manifest = member.dir.join("Cargo.toml");
        let Some(rank) = table.crates.get(&member.name) else {
            findings.push(format!("{}:1: crate {} has no rank in docs/layers.toml", manifest.display(), member.name));
            continue;
        };
        for dependency in &member.dependencies {
            let Some(to) = table.crates.get(dependency) else { continue };
            count += 1;
            match judge((&member.name, rank), (dependency, to), &table.sibling) {
                Verdict::Down => {}
                Verdict::ListedSibling(at) => used[at] = true,
                verdict => findings.push(format!(
                    "{}:{}: {} (rank {rank}) may not depend on {dependency} (rank {to}): points {}",
                    manifest.display(),
                    line_of(&member.manifest, dependency),
                    member.name,
                    if verdict == Verdict::Up { "up" } else { "sideways" },
                )),
            }
        }
    }
    check_siblings(&table.sibling, &used, findings);
    count
}

fn line_of(manifest: &str, dependency: &str) -> usize {
    manifest.lines().position(|line| line.trim_start().starts_with(dependency)).map_or(1, |at| at + 1)
}
