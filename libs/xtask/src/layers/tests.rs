//! The rank check on small trees: valid trees pass, invalid ones fail with place and ranks in the message.

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

    /// The only finding of a tree with one fault.
    fn finding(&self) -> String {
        let findings = self.findings();
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.into_iter().next().expect("one finding")
    }

    /// The only finding about cycles of a tree that has one, which also violates the ranks.
    fn circle(&self) -> String {
        let mut findings = self.findings();
        findings.retain(|finding| finding.contains(" in a circle: "));
        assert_eq!(findings.len(), 1, "{findings:?}");
        findings.remove(0)
    }

    /// The only finding about ranks of a tree with one import that violates them: it may also close a cycle.
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
    assert!(summary.starts_with("layers: 3 crates, 1 dependencies; 8 modules, all ranked, 5 imports"), "{summary}");
    assert!(summary.ends_with("largest cycle 0; 0 findings"), "{summary}");
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

    // The pair is one-way, and must go when nothing needs it.
    sample.write("docs/layers.toml", &pair("the cache fills itself"));
    sample.write("engine/src/cache.rs", "");
    assert!(sample.finding().contains("is not needed: remove it"));
    sample.write("engine/src/disk.rs", "use crate::cache::Cache;\n");
    assert!(sample.findings().iter().any(|finding| finding.contains("disk (rank b) may not use cache (rank b)")));
}

#[test]
fn a_type_taken_through_a_parent_counts_as_use_of_it_and_one_through_the_root_as_use_of_who_defines_it() {
    let sample = Sample::new();
    sample.write("engine/src/tenant/map.rs", "use crate::tenant::Tenant;\n");
    assert!(sample.against_ranks().contains("tenant::map (rank d) may not use tenant (rank h)"));
    sample.write("engine/src/tenant/map.rs", "use crate::Tenant;\n");
    assert!(
        sample.against_ranks().contains("tenant::map (rank d) may not use tenant (rank h): crate::Tenant points up")
    );
    // Its re-exports from below may be used, and so may those from another crate.
    let root = "mod config;\nmod disk;\nmod cache;\nmod tenant;\npub use config::Config;\npub use ids::Id;\n";
    sample.write("engine/src/lib.rs", root);
    sample.write("engine/src/tenant/map.rs", "use crate::{Config, Id};\n");
    assert_eq!(sample.findings(), Vec::<String>::new());
}

#[test]
fn what_the_root_defines_may_be_used_where_the_root_has_a_rank() {
    let sample = Sample::new();
    let root = "mod config;\nmod disk;\nmod cache;\nmod tenant;\npub use tenant::Tenant;\npub const BLOCK: u8 = 1;\n";
    sample.write("engine/src/lib.rs", root);
    sample.write("engine/src/config.rs", "use crate::BLOCK;\npub struct Config;\n");
    assert!(sample.finding().contains("config (rank a) uses crate::BLOCK of the crate's root, which is above all"));
    sample.write("docs/layers.toml", &TABLE.replace("config = \"a\"", "crate = \"0\"\nconfig = \"a\""));
    assert_eq!(sample.findings(), Vec::<String>::new());
    // Then it is bound by its rank, except for its re-exports.
    sample.write("engine/src/lib.rs", &format!("{root}fn f(_: disk::Disk) {{}}\n"));
    assert!(sample.against_ranks().contains("crate (rank 0) may not use disk (rank b): disk::Disk points up"));
}

#[test]
fn every_library_and_program_with_modules_needs_ranks() {
    let sample = Sample::new();
    sample.write("clock/src/lib.rs", "pub fn now() {}\n");
    assert_eq!(sample.findings(), Vec::<String>::new());
    sample.write("clock/src/lib.rs", "mod hand;\n");
    sample.write("clock/src/hand.rs", "");
    assert_eq!(sample.finding(), "docs/layers.toml: [inner.clock] is missing: clock has modules");
    let (_, summary) = check(sample.dir.path().as_std_path()).expect("check runs");
    assert!(summary.contains("; 10 modules, 1 of them without a rank, "), "{summary}");

    let sample = Sample::new();
    sample.write("ids/src/main.rs", "mod args;\nfn main() {}\n");
    sample.write("ids/src/args.rs", "");
    assert_eq!(sample.finding(), "docs/layers.toml: [programs.ids] is missing: the program ids has modules");

    let sample = Sample::new();
    let more = "[inner.watch]\norder = [\"a\"]\n[programs.tick]\norder = [\"a\"]\n";
    sample.write("docs/layers.toml", &format!("{TABLE}{more}"));
    let findings = sample.findings();
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert_eq!(findings[0], "docs/layers.toml: [inner.watch] is nothing of the workspace");
    assert_eq!(findings[1], "docs/layers.toml: [programs.tick] is nothing of the workspace");
}

#[test]
fn modules_of_programs_obey_their_order() {
    let sample = Sample::new();
    sample.write("docs/layers.toml", &format!("{TABLE}[programs.tick]\norder = [\"args hand\", \"serve\"]\n"));
    sample.write("clock/src/bin/tick/main.rs", "mod args;\nmod hand;\nmod serve;\nfn main() {\n    serve::run();\n}\n");
    sample.write("clock/src/bin/tick/args.rs", "pub struct Args;\n");
    sample.write("clock/src/bin/tick/hand.rs", "");
    sample.write("clock/src/bin/tick/serve.rs", "use crate::args::Args;\npub fn run() {}\n");
    assert_eq!(sample.findings(), Vec::<String>::new());
    sample.write("clock/src/bin/tick/hand.rs", "use crate::serve::run;\n");
    let start = "clock/src/bin/tick/hand.rs:1: hand (rank a) may not use serve (rank b): crate::serve::run points up";
    assert_eq!(sample.finding(), start);
    sample.write("clock/src/bin/tick/hand.rs", "use super::args;\n");
    assert!(sample.finding().contains("hand (rank a) may not use args (rank a): super::args points sideways"));
}

#[test]
fn an_order_names_each_module_once_and_stands_alone() {
    for wrong in ["order = [\"hand\", \"hand\"]", "order = [\"hand\"]\nranks = { hand = \"a\" }"] {
        let sample = Sample::new();
        sample.write("clock/src/lib.rs", "mod hand;\n");
        sample.write("clock/src/hand.rs", "");
        sample.write("docs/layers.toml", &format!("{TABLE}[inner.clock]\n{wrong}\n"));
        let error = check(sample.dir.path().as_std_path()).expect_err("is refused");
        assert_eq!(error.to_string(), "docs/layers.toml: [inner.clock]");
    }
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
    // Dev-dependencies are unrestricted.
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
    let tables = "[inner.clock]\norder = [\"face\", \"hand\"]\n[programs.tick]\norder = [\"crate\", \"a\"]\n";
    sample.write("docs/layers.toml", &format!("{TABLE}{tables}"));
    sample.write("clock/src/bin/tick/main.rs", "mod a;\nfn main() {}\n");
    sample.write("clock/src/bin/tick/a.rs", "");
    sample.write("clock/src/lib.rs", "mod hand;\nmod face;\npub use hand::Hand;\n");
    sample.write("clock/src/hand.rs", "use crate::face::Face;\npub struct Hand(Face);\n");
    sample.write("clock/src/face.rs", "pub struct Face;\n");
    assert_eq!(sample.findings(), Vec::<String>::new());
    // The root re-exports the name; the module that defines it is used nevertheless.
    sample.write("clock/src/face.rs", "pub struct Face(Option<Box<crate::Hand>>);\n");
    assert_eq!(sample.circle(), "clock: 2 modules use each other in a circle: face, hand");
    sample.write("clock/src/face.rs", "pub struct Face;\n");
    sample.write("clock/src/bin/tick/main.rs", "mod a;\nstruct Args;\nfn main() {\n    a::run();\n}\n");
    sample.write("clock/src/bin/tick/a.rs", "pub fn run() {\n    let _ = crate::Args;\n}\n");
    assert_eq!(sample.circle(), "clock: 2 modules use each other in a circle: a, crate");
}

#[test]
fn a_cycle_may_only_shrink() {
    let sample = Sample::new();
    sample.write("engine/src/config.rs", "mod read;\nmod write;\npub struct Config;\n");
    sample.write("engine/src/config/read.rs", "use super::write;\n");
    sample.write("engine/src/config/write.rs", "use super::read;\n");
    sample.write("docs/layers.toml", &format!("{TABLE}\n[cycles]\nengine = 2\n"));
    assert_eq!(sample.findings(), Vec::<String>::new());
    sample.write("docs/layers.toml", &format!("{TABLE}\n[cycles]\nengine = 3\n"));
    assert!(sample.finding().contains("the largest cycle of engine has 2 modules now: lower its entry"));
    sample.write("docs/layers.toml", &format!("{TABLE}\n[cycles]\nengine = 2\nwatch = 2\n"));
    assert!(sample.finding().contains("cycles: watch is not a crate of the workspace"));
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
