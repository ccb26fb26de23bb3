//! Every fuzz target, without a fuzzer: on all committed seeds and on mutations of them, the same in each run.
//! Findings are fixed like those of a fuzzer.

#[path = "smoke/largest.rs"]
mod largest;
#[path = "smoke/mutate.rs"]
mod mutate;

use std::collections::BTreeSet;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fuzzed::TARGETS;
use mutate::Mutator;

/// Number of mutations of a target's seeds; takes some seconds at most.
const RUNS: usize = 200_000;
/// A single allocation above this size is a finding, as it is for `make fuzz`.
const LARGEST_ALLOCATION: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: largest::Noting = largest::Noting;

fn seeds_of(target: &str) -> Vec<Vec<u8>> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/seeds").join(target);
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Where `make fuzz` stores its findings.
fn findings_of(target: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("fuzz").join("found").join(target)
}

/// Runs the seeds, then mutations of them. Panics with the location of the input that violates a property.
fn run_all(name: &str, body: fn(&[u8]), seeds: &[Vec<u8>], runs: usize, findings: &Path) {
    assert!(!seeds.is_empty(), "{name} has no seeds");
    seeds.iter().for_each(|seed| run_one(name, body, seed, findings));
    let mut mutator = Mutator::new(name, seeds);
    for _ in 0..runs {
        run_one(name, body, mutator.mutate(), findings);
    }
}

fn run_one(name: &str, body: fn(&[u8]), input: &[u8], findings: &Path) {
    largest::forget();
    let held = catch_unwind(AssertUnwindSafe(|| body(input))).is_ok();
    let allocated = largest::allocation();
    if held && allocated <= LARGEST_ALLOCATION {
        return;
    }
    let path = findings.join(format!("smoke-{:016x}", mutate::hash(input)));
    fs::create_dir_all(findings).unwrap();
    fs::write(&path, input).unwrap();
    let what = if held { format!("allocates {allocated} bytes at once") } else { "panics, see above,".to_owned() };
    panic!("fuzz target {name} {what} with the input in {}", path.display());
}

macro_rules! targets {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            let name = stringify!($name);
            let target = TARGETS.iter().find(|target| target.name == name).unwrap();
            run_all(name, target.run, &seeds_of(name), RUNS, &findings_of(name));
        })+

        const RUN_HERE: &[&str] = &[$(stringify!($name)),+];
    };
}

targets! {
    backend brin btree frontend generic gin gist hash heap heap2 image journal maps page pagestream record seq spgist
    startup stream xlog
}

/// The lists agree: targets run here, programs, seeds, and what `make fuzz` builds.
#[test]
fn no_target_is_forgotten() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let here: BTreeSet<_> = RUN_HERE.iter().map(ToString::to_string).collect();
    let known: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(here, known);
    let names = |dir: &str| -> BTreeSet<String> {
        let entries = fs::read_dir(root.join(dir)).unwrap().map(|entry| entry.unwrap().path());
        entries.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("fuzz/fuzz_targets"), known);
    assert_eq!(names("tests/seeds"), known);
    let manifest = fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap();
    for name in known {
        let program = fs::read_to_string(root.join(format!("fuzz/fuzz_targets/{name}.rs"))).unwrap();
        assert!(program.contains(&format!("fuzz_target!(|input: &[u8]| fuzzed::run(\"{name}\", input));")), "{name}");
        let bin = format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
        assert!(manifest.contains(&bin), "{name}");
    }
}

fn what_is_found(body: fn(&[u8]), findings: &Path) -> String {
    let seeds = [vec![0; 10], vec![1; 30]];
    let found = catch_unwind(AssertUnwindSafe(|| run_all("sample", body, &seeds, 5000, findings)));
    *found.expect_err("nothing was found").downcast::<String>().unwrap()
}

#[test]
fn a_panic_is_found_and_its_input_is_kept() {
    let dir = camino_tempfile::tempdir().unwrap();
    let body = |input: &[u8]| assert!(!(input.len() > 12 && input.contains(&0x7f)), "a finding on purpose");
    let said = what_is_found(body, dir.path().as_std_path());
    let path = said.split("with the input in ").nth(1).unwrap();
    let input = fs::read(path).unwrap();
    assert!(said.contains("fuzz target sample panics") && catch_unwind(|| body(&input)).is_err(), "{said}");
    // Repeatable: the same finding again.
    assert_eq!(what_is_found(body, dir.path().as_std_path()), said);
}

#[test]
fn a_large_allocation_is_found() {
    let dir = camino_tempfile::tempdir().unwrap();
    let body = |input: &[u8]| drop(std::hint::black_box(Vec::<u8>::with_capacity(input.len() << 16)));
    let said = what_is_found(body, dir.path().as_std_path());
    assert!(said.contains("fuzz target sample allocates 1966080 bytes at once"), "{said}");
}
