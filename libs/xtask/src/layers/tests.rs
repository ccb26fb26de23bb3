//! The rank check on small trees: what must pass does, what must fail does, with place and ranks in the message.

use camino_tempfile::Utf8TempDir;

use super::check;

const TABLE: &str = r#"
[crates]
ids = 0
clock = 0
engine = 3

[inner.engine]
split = ["tenant"]

[inner.engine.ranks]
config = "a"
disk = "b"
cache = "b"
"tenant::layer" = "c"
"tenant::map" = "d"
tenant = "h"
"#;

/// A tree that obeys the table.
struct Sample {
    dir: Utf8TempDir,
}

impl Sample {
    fn new() -> Self {
        let sample = Self { dir: camino_tempfile::tempdir().expect("temporary directory") };
        sample.write("Cargo.toml", "[workspace]\nmembers = [\"ids\", \"clock\", \"engine\"]\n");
        sample.write("docs/layers.toml", TABLE);
        for name in ["ids", "clock"] {
            sample.write(&format!("{name}/Cargo.toml"), &format!("[package]\nname = \"{name}\"\n[dependencies]\n"));
        }
        sample.write("engine/Cargo.toml", "[package]\nname = \"engine\"\n[dependencies]\nids.workspace = true\n");
        sample.write("engine/src/lib.rs", "mod config;\nmod disk;\nmod cache;\nmod tenant;\npub use tenant::Tenant;\n");
        sample.write("engine/src/config.rs", "pub struct Config;\n");
        sample.write("engine/src/disk.rs", "mod block;\nuse crate::config::Config;\npub struct Disk(Config);\n");
        sample.write("engine/src/disk/block.rs", "use super::Disk;\npub struct Block(Disk);\n");
        sample.write("engine/src/cache.rs", "use crate::config;\npub struct Cache(config::Config);\n");
        sample.write("engine/src/tenant.rs", "mod layer;\nmod map;\nuse map::Map;\npub struct Tenant(Map);\n");
        sample.write("engine/src/tenant/layer.rs", "use crate::disk::Disk;\npub struct Layer(Disk);\n");
        sample.write("engine/src/tenant/map.rs", "use super::layer::Layer;\npub struct Map(Layer);\n");
        sample
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.dir.path().join(name);
        std::fs::create_dir_all(file.parent().expect("has a parent")).expect("create directory");
        std::fs::write(file, text).expect("write sample");
    }

    fn findings(&self) -> Vec<String> {
        check(self.dir.path().as_std_path()).expect("check runs").0
    }

    /// The one finding of a tree with one fault.
    fn finding(&self) -> String {
        let findings = self.findings();
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.into_iter().next().expect("one finding")
    }

    /// The one finding about ranks of a tree with one import against them: it may close a circle, too.
    fn against_ranks(&self) -> String {
        let mut findings = self.findings();
        findings.retain(|finding| !finding.contains(" in a circle: "));
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0)
    }
}

#[test]
fn a_tree_that_obeys_has_no_finding() {
    let (findings, summary) = check(Sample::new().dir.path().as_std_path()).expect("check runs");
    assert!(findings.is_empty(), "{findings:?}");
    assert!(summary.starts_with("layers: 3 crates, 1 dependencies, 6 ranked modules, 5 imports"), "{summary}");
}

#[test]
fn an_import_that_points_up_is_found_in_every_form() {
    for (text, line) in [
        ("use crate::tenant::map::Map;\n", 1),
        ("\nuse crate::{config::Config, tenant::{map::Map}};\n", 2),
        ("use super::map::*;\n", 1),
        ("use super::map as m;\n", 1),
        ("fn f(_: crate::tenant::map::Map) {}\n", 1),
        ("fn f() {\n    crate::tenant::map::g();\n}\n", 2),
        ("fn f() {\n    println!(\"{}\", crate::tenant::map::g());\n}\n", 2),
        ("mod inner {\n    use super::super::map::Map;\n}\n", 2),
        ("#[cfg(not(test))]\nuse super::map::Map;\n", 2),
    ] {
        let sample = Sample::new();
        sample.write("engine/src/tenant/layer.rs", text);
        let finding = sample.against_ranks();
        let start =
            format!("engine/src/tenant/layer.rs:{line}: tenant::layer (rank c) may not use tenant::map (rank d)");
        assert!(finding.starts_with(&start) && finding.ends_with("points up"), "{text}: {finding}");
    }
}

#[test]
fn what_only_tests_name_is_free() {
    let sample = Sample::new();
    let text = "#[cfg(test)]\nuse super::map::Map;\n#[cfg(test)]\nmod tests {\n    use super::super::map::Map;\n}\n\
                struct L;\nimpl L {\n    #[cfg(test)]\n    fn f(_: super::map::Map) {}\n}\n";
    sample.write("engine/src/tenant/layer.rs", text);
    assert_eq!(sample.findings(), Vec::<String>::new());
}

#[test]
fn a_sideways_import_needs_a_listed_pair_with_a_reason() {
    let sample = Sample::new();
    sample.write("engine/src/cache.rs", "use crate::disk::Disk;\n");
    assert!(sample.finding().contains("cache (rank b) may not use disk (rank b): crate::disk::Disk points sideways"));

    let pair =
        |why: &str| format!("{TABLE}\n[[inner.engine.sibling]]\nfrom = \"cache\"\nto = \"disk\"\nwhy = \"{why}\"\n");
    sample.write("docs/layers.toml", &pair("the cache fills itself"));
    assert_eq!(sample.findings(), Vec::<String>::new());
    sample.write("docs/layers.toml", &pair(" "));
    assert!(sample.finding().contains("gives no reason"));

    // The pair is one-way, and goes when nothing needs it.
    sample.write("docs/layers.toml", &pair("the cache fills itself"));
    sample.write("engine/src/cache.rs", "");
    assert!(sample.finding().contains("is not needed: remove it"));
    sample.write("engine/src/disk.rs", "use crate::cache::Cache;\n");
    assert!(sample.findings().iter().any(|finding| finding.contains("disk (rank b) may not use cache (rank b)")));
}

#[test]
fn a_type_taken_through_a_parent_or_the_root_counts_as_use_of_it() {
    let sample = Sample::new();
    sample.write("engine/src/tenant/map.rs", "use crate::tenant::Tenant;\n");
    assert!(sample.against_ranks().contains("tenant::map (rank d) may not use tenant (rank h)"));
    sample.write("engine/src/tenant/map.rs", "use crate::Tenant;\n");
    assert!(sample.against_ranks().contains("through the crate's root"));
}

#[test]
fn every_module_needs_a_rank_and_every_rank_a_module() {
    let sample = Sample::new();
    sample.write("engine/src/lib.rs", "mod config;\nmod disk;\nmod cache;\nmod tenant;\nmod extra;\n");
    sample.write("engine/src/extra.rs", "");
    assert_eq!(sample.finding(), "engine/src/extra.rs:1: module extra of engine has no rank in docs/layers.toml");

    let sample = Sample::new();
    sample.write("engine/src/tenant.rs", "mod layer;\nmod map;\nmod third {}\n");
    assert!(sample.finding().starts_with("engine/src/tenant.rs:3: module tenant::third of engine has no rank"));

    let sample = Sample::new();
    sample.write("docs/layers.toml", &TABLE.replace("config =", "gone = \"a\"\nconfig ="));
    assert_eq!(sample.finding(), "docs/layers.toml: engine has no module gone");
}

#[test]
fn a_crate_dependency_against_the_ranks_is_found() {
    let sample = Sample::new();
    sample.write("ids/Cargo.toml", "[package]\nname = \"ids\"\n[dependencies]\nengine.workspace = true\n");
    assert_eq!(sample.finding(), "ids/Cargo.toml:4: ids (rank 0) may not depend on engine (rank 3): points up");
    sample.write("ids/Cargo.toml", "[package]\nname = \"ids\"\n[dependencies]\nc = { package = \"clock\" }\n");
    assert!(sample.finding().contains("ids (rank 0) may not depend on clock (rank 0): points sideways"));
    let pair = "[[sibling]]\nfrom = \"ids\"\nto = \"clock\"\nwhy = \"ids are drawn at random\"\n";
    sample.write("docs/layers.toml", &format!("{TABLE}{pair}"));
    assert_eq!(sample.findings(), Vec::<String>::new());
    // What only tests depend on is free.
    let sample = Sample::new();
    sample.write("ids/Cargo.toml", "[package]\nname = \"ids\"\n[dev-dependencies]\nengine.workspace = true\n");
    assert_eq!(sample.findings(), Vec::<String>::new());
}

#[test]
fn every_crate_needs_a_rank_and_every_rank_a_crate() {
    let sample = Sample::new();
    sample.write("docs/layers.toml", &TABLE.replace("clock = 0", "watch = 0"));
    let findings = sample.findings();
    assert!(findings.contains(&"clock/Cargo.toml:1: crate clock has no rank in docs/layers.toml".to_owned()));
    assert!(findings.iter().any(|finding| finding.contains("crate watch has a rank but is not in the workspace")));
}

#[test]
fn a_source_names_no_crate_above_its_own() {
    let sample = Sample::new();
    sample.write("docs/layers.toml", &TABLE.replace("clock = 0", "clock = 4"));
    sample.write("engine/src/config.rs", "fn f() -> ::clock::Time {\n    clock::now()\n}\n");
    let findings = sample.findings();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert_eq!(findings[1], "engine/src/config.rs:2: engine (rank 3) may not use crate clock (rank 4)");
}

#[test]
fn sources_that_cannot_be_read_are_an_error_with_their_place() {
    let sample = Sample::new();
    sample.write("engine/src/config.rs", "fn f() {}\nfn {\n");
    let error = check(sample.dir.path().as_std_path()).expect_err("does not parse").to_string();
    assert!(error.contains("engine/src/config.rs:2"), "{error}");
}

#[test]
fn modules_that_use_each_other_are_found_in_any_crate_and_program() {
    let sample = Sample::new();
    sample.write("clock/src/lib.rs", "mod hand;\nmod face;\npub use hand::Hand;\n");
    sample.write("clock/src/hand.rs", "use crate::face::Face;\npub struct Hand(Face);\n");
    sample.write("clock/src/face.rs", "pub struct Face;\n");
    assert_eq!(sample.findings(), Vec::<String>::new());
    // The name is handed on by the root; the module that defines it is used nevertheless.
    sample.write("clock/src/face.rs", "pub struct Face(Option<Box<crate::Hand>>);\n");
    assert_eq!(sample.finding(), "clock: 2 modules use each other in a circle: face, hand");
    sample.write("clock/src/face.rs", "pub struct Face;\n");
    sample.write("clock/src/bin/tick/main.rs", "mod a;\nstruct Args;\nfn main() {\n    a::run();\n}\n");
    sample.write("clock/src/bin/tick/a.rs", "pub fn run() {\n    let _ = crate::Args;\n}\n");
    assert_eq!(sample.finding(), "clock: 2 modules use each other in a circle: a, crate");
}

#[test]
fn a_cycle_may_only_shrink() {
    let sample = Sample::new();
    sample.write("clock/src/lib.rs", "mod hand;\nmod face;\n");
    sample.write("clock/src/hand.rs", "use crate::face;\n");
    sample.write("clock/src/face.rs", "use crate::hand;\n");
    sample.write("docs/layers.toml", &format!("{TABLE}\n[cycles]\nclock = 2\n"));
    assert_eq!(sample.findings(), Vec::<String>::new());
    sample.write("docs/layers.toml", &format!("{TABLE}\n[cycles]\nclock = 3\n"));
    assert!(sample.finding().contains("the largest cycle of clock has 2 modules now: lower its entry"));
    sample.write("docs/layers.toml", &format!("{TABLE}\n[cycles]\nwatch = 2\n"));
    assert_eq!(sample.findings().len(), 2);
}

#[test]
fn what_attributes_name_is_used() {
    for text in [
        "#[derive(Serialize)]\nstruct L {\n    #[serde(with = \"crate::tenant::map\")]\n    field: u32,\n}\n",
        "#[derive(Parser)]\nstruct L {\n    #[arg(value_parser = super::map::parse)]\n    field: u32,\n}\n",
    ] {
        let sample = Sample::new();
        sample.write("engine/src/tenant/layer.rs", text);
        assert!(sample.against_ranks().starts_with("engine/src/tenant/layer.rs:3: tenant::layer (rank c) may not use"));
    }
}

#[test]
fn dependencies_of_some_platforms_and_under_other_names_count() {
    let sample = Sample::new();
    sample
        .write("clock/Cargo.toml", "[package]\nname = \"clock\"\n[target.'cfg(unix)'.dependencies]\nengine = \"1\"\n");
    assert!(sample.finding().contains("clock (rank 0) may not depend on engine (rank 3): points up"));
    let members = "[workspace]\nmembers = [\"ids\", \"clock\", \"engine\"]\n[workspace.dependencies]\n";
    sample.write("Cargo.toml", &format!("{members}motor = {{ package = \"engine\", path = \"engine\" }}\n"));
    sample.write("clock/Cargo.toml", "[package]\nname = \"clock\"\n[dependencies]\nmotor.workspace = true\n");
    assert!(sample.finding().contains("clock (rank 0) may not depend on engine (rank 3): points up"));
}

#[test]
fn a_pair_in_both_directions_is_a_cycle() {
    let sample = Sample::new();
    sample.write("engine/src/cache.rs", "use crate::disk::Disk;\n");
    sample.write("engine/src/disk.rs", "mod block;\nuse crate::cache;\npub struct Disk;\n");
    let pair =
        |from: &str, to: &str| format!("[[inner.engine.sibling]]\nfrom = \"{from}\"\nto = \"{to}\"\nwhy = \"so\"\n");
    let both = pair("cache", "disk") + &pair("disk", "cache");
    sample.write("docs/layers.toml", &format!("{TABLE}\n{both}\n[cycles]\nengine = 2\n"));
    assert!(sample.finding().contains("cache and disk use each other: a cycle"));
}
