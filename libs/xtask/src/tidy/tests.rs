//! The ratchet on small trees: each rule finds its offender, and known offenders may only shrink.

use camino_tempfile::Utf8TempDir;

use super::check;

struct Sample {
    dir: Utf8TempDir,
}

impl Sample {
    fn new(ratchet: &str) -> Self {
        let sample = Self { dir: camino_tempfile::tempdir().expect("temporary directory") };
        sample.write("docs/ratchet.toml", ratchet);
        sample
    }

    fn write(&self, name: &str, text: &str) {
        let file = self.dir.path().join(name);
        std::fs::create_dir_all(file.parent().expect("has a parent")).expect("create directory");
        std::fs::write(file, text).expect("write sample");
    }

    fn ratchet(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("docs/ratchet.toml")).expect("ratchet is there")
    }

    fn findings(&self, update: bool) -> Vec<String> {
        check(self.dir.path().as_std_path(), update).expect("check runs").0
    }

    #[track_caller]
    fn assert_one(&self, start: &str) {
        let findings = self.findings(false);
        assert_eq!(findings.len(), 1, "{findings:?}");
        assert!(findings[0].starts_with(start), "{findings:?}");
    }
}

/// A function of `lines` lines, signature and closing brace included.
fn function(name: &str, lines: usize) -> String {
    format!("fn {name}() {{\n{}}}\n", "    let _ = 1;\n".repeat(lines - 2))
}

#[test]
fn small_plain_sources_pass() {
    let sample = Sample::new("");
    sample.write("a/src/seventy.rs", &function("f", 70));
    sample.write("a/src/six_hundred.rs", &"const A: u8 = 1;\n".repeat(600));
    sample.write("run.py", "print('x')\n");
    assert_eq!(sample.findings(false), Vec::<String>::new());
}

#[test]
fn a_file_is_measured_without_its_tests() {
    let sample = Sample::new("");
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "const B: u8 = 1;\n".repeat(300));
    sample.write("lib.rs", &format!("{}{tests}", "const A: u8 = 1;\n".repeat(600)));
    assert_eq!(sample.findings(false), Vec::<String>::new());
    sample.write("lib.rs", &format!("{}{tests}", "const A: u8 = 1;\n".repeat(601)));
    sample.assert_one("lib.rs: new offender of file_lines: 601");
    sample.write("lib.rs", "");
    // A module declared for tests does not count either, whatever its name.
    sample.write("a.rs", "");
    sample.write("z/helper.rs", &"const A: u8 = 1;\n".repeat(700));
    sample.assert_one("z/helper.rs: new offender of file_lines: 700");
    sample.write("z.rs", "#[cfg(test)]\nmod helper;\n");
    assert_eq!(sample.findings(false), Vec::<String>::new());
    // Files that contain only tests have no length limit.
    sample.write("lib.rs", "");
    sample.write("foo/tests.rs", &"const A: u8 = 1;\n".repeat(700));
    sample.write("tests/behaviour.rs", &function("f", 90));
    assert_eq!(sample.findings(false), Vec::<String>::new());
}

#[test]
fn a_long_function_is_named_with_its_type() {
    let sample = Sample::new("");
    sample.write("lib.rs", &format!("/// Documented.\n#[inline]\n{}", function("f", 71)));
    sample.assert_one("lib.rs::f: new offender of function_lines: 71");
    sample.write("lib.rs", &format!("struct T;\nimpl T {{\n{}}}\n", function("g", 72)));
    sample.assert_one("lib.rs::T::g: new offender of function_lines: 72");
    sample.write("lib.rs", &format!("#[cfg(test)]\n{}", function("f", 90)));
    assert_eq!(sample.findings(false), Vec::<String>::new());
}

#[test]
fn long_lines_and_foreign_bytes_are_found_in_every_kind_of_source() {
    for name in ["a.rs", "b.py", "c.sh", "d.toml", "Makefile", ".ci/run"] {
        let sample = Sample::new("");
        let comment = if name.ends_with(".rs") { "//" } else { "#" };
        sample.write(name, &format!("{comment} {}\n", "x".repeat(120)));
        sample.assert_one(&format!("{name}: new offender of long_lines: 1"));
        sample.write(name, &format!("{comment} \u{e9}\n"));
        sample.assert_one(&format!("{name}: new offender of non_ascii: 1"));
    }
}

#[test]
fn marks_are_found_as_words() {
    let sample = Sample::new("");
    sample.write("a.py", &format!("# {}: later\n# {}(me)\n", concat!("TO", "DO"), concat!("FIX", "ME")));
    sample.assert_one("a.py: new offender of marks: 2");
    sample.write("a.py", concat!("# AUTO", "DOC and XX", "XX are words of their own\n"));
    assert_eq!(sample.findings(false), Vec::<String>::new());
}

#[test]
fn unwrap_is_counted_outside_tests_and_inside_macros() {
    let sample = Sample::new("");
    let code = "fn f(a: Option<u8>) {\n    a.unwrap();\n    assert!(a.unwrap() == 1);\n    a.unwrap_or(1);\n}\n";
    sample.write("lib.rs", &format!("{code}#[cfg(test)]\nmod tests {{\n{code}}}\n#[test]\n{code}"));
    sample.assert_one("lib.rs: new offender of unwrap: 2");
    sample.write("lib.rs", "");
    sample.write("benches/b.rs", code);
    assert_eq!(sample.findings(false), Vec::<String>::new());
}

#[test]
fn expect_says_why_it_cannot_fail_and_is_rare() {
    let sample = Sample::new("");
    let code = |calls: usize| {
        let call = "    a.expect(\"it was just put there\");\n".repeat(calls);
        format!("fn f(a: Option<u8>) {{\n{call}}}\n#[cfg(test)]\nmod tests {{\n    fn g() {{\n{call}    }}\n}}\n")
    };
    sample.write("a.rs", &code(10));
    sample.write("b.rs", &code(10));
    assert_eq!(sample.findings(false), Vec::<String>::new());
    sample.write("b.rs", &code(11));
    sample.assert_one("21 calls of expect outside tests, at most 20 may be: a.rs:2, ");
    sample.write("b.rs", "fn f(a: Option<u8>) {\n    a.expect(\"overflow\");\n}\n");
    sample.assert_one("b.rs:2: expect does not say, as plain text, why it cannot fail");
    sample.write("b.rs", "macro_rules! m {\n    ($a:ident) => {\n        $a.expect(why)\n    };\n}\n");
    sample.assert_one("b.rs:3: expect does not say, as plain text, why it cannot fail");
    sample.write("b.rs", "fn f(a: Parser) {\n    a.expect_err(\"x\");\n    expect(1);\n}\n");
    assert_eq!(sample.findings(false), Vec::<String>::new());
}

#[test]
fn a_list_of_seams_of_its_own_may_leave_out_files_only() {
    let sample = Sample::new("");
    let list = |paths: &[&str]| {
        let paths: Vec<String> = paths.iter().map(|path| format!("{{ path = {path:?} }}")).collect();
        format!("disallowed-methods = [{}]\n", paths.join(", "))
    };
    sample.write("clippy.toml", &list(&["tokio::spawn", "std::fs::write"]));
    sample.write("compute/clippy.toml", &list(&["tokio::spawn"]));
    assert_eq!(sample.findings(false), Vec::<String>::new());
    sample.write("compute/clippy.toml", &list(&["tokio::time::sleep"]));
    let findings = sample.findings(false);
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert_eq!(findings[0], "compute/clippy.toml: tokio::spawn is denied here or in clippy.toml, not in both");
}

#[test]
fn roots_of_crates_keep_to_the_seams() {
    let sample = Sample::new("");
    let denied = "#![cfg_attr(not(test), deny(clippy::disallowed_methods))]\n";
    sample.write("engine/src/lib.rs", denied);
    sample.write("libs/metrics/src/lib.rs", "#![allow(clippy::disallowed_methods, reason = \"a tool\")]\n");
    sample.write("pageserver/src/bin/pageserver/main.rs", denied);
    assert_eq!(sample.findings(false), Vec::<String>::new());
    sample.write("pageserver/src/bin/pageserver/main.rs", "mod args;\n");
    sample.assert_one("pageserver/src/bin/pageserver/main.rs: a root of a crate needs the line #![cfg_attr(");
    sample.write("pageserver/src/bin/pageserver/main.rs", denied);
    sample.write("libs/metrics/src/lib.rs", "mod a;\n");
    sample.assert_one("libs/metrics/src/lib.rs: a root of a crate needs the line #![cfg_attr(");
}

#[test]
fn unsafe_needs_its_reason() {
    let sample = Sample::new("");
    let bare = "fn f() {\n    unsafe { g() }\n}\nunsafe impl Send for T {}\n";
    sample.write("lib.rs", bare);
    sample.assert_one("lib.rs: new offender of bare_unsafe: 2");
    sample.write(
        "lib.rs",
        "fn f() {\n    // SAFETY: g asks for nothing,\n    // and gives nothing.\n    \
         let x =\n        unsafe { g() };\n}\n\
         // SAFETY: T holds no pointer.\nunsafe impl Send for T {}\n",
    );
    assert_eq!(sample.findings(false), Vec::<String>::new());
    // A reason above another block does not count for this one.
    sample
        .write("lib.rs", "fn f() {\n    // SAFETY: fine.\n    unsafe { g() }\n}\n\nfn h() {\n    unsafe { g() }\n}\n");
    sample.assert_one("lib.rs: new offender of bare_unsafe: 1");
}

#[test]
fn a_known_offender_may_only_shrink() {
    let sample = Sample::new("# Why: history.\n\n[function_lines]\n\"lib.rs::f\" = 80\n");
    sample.write("lib.rs", &function("f", 80));
    assert_eq!(sample.findings(false), Vec::<String>::new());

    sample.write("lib.rs", &function("f", 81));
    sample.assert_one("lib.rs::f: grew in function_lines: 80 -> 81");
    assert_eq!(sample.findings(true).len(), 1, "an update does not raise");
    assert!(sample.ratchet().contains("\"lib.rs::f\" = 80"));

    sample.write("lib.rs", &function("f", 75));
    sample.assert_one("lib.rs::f: shrank in function_lines: 80 -> 75; run `xtask tidy --update`");
    assert_eq!(sample.findings(true), Vec::<String>::new());
    assert!(sample.ratchet().contains("\"lib.rs::f\" = 75"));
    assert!(sample.ratchet().starts_with("# Why: history.\n"), "the header stays");

    sample.write("lib.rs", &function("f", 80));
    sample.assert_one("lib.rs::f: grew in function_lines: 75 -> 80");

    sample.write("lib.rs", "");
    sample.assert_one("lib.rs::f: shrank in function_lines: 75 -> 0");
    assert_eq!(sample.findings(true), Vec::<String>::new());
    assert!(!sample.ratchet().contains("lib.rs::f"));
}

#[test]
fn an_update_adds_no_offender() {
    let sample = Sample::new("");
    sample.write("lib.rs", &function("f", 80));
    assert_eq!(sample.findings(true).len(), 1);
    assert_eq!(sample.findings(false).len(), 1);
    assert!(!sample.ratchet().contains("lib.rs"));
}

#[test]
fn an_unknown_rule_is_refused() {
    let sample = Sample::new("[bananas]\n\"lib.rs\" = 1\n");
    assert!(check(sample.dir.path().as_std_path(), false).is_err());
}
