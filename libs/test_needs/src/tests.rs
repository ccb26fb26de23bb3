use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

const PLACE: &str = "suite::module::a_test::{{closure}}::{{closure}}";

fn list() -> (camino_tempfile::Utf8TempDir, PathBuf) {
    let dir = camino_tempfile::tempdir().unwrap();
    let list = dir.path().join("not/there/yet").into_std_path_buf();
    (dir, list)
}

#[test]
fn what_is_missing_is_a_failure_that_says_what_to_do() {
    let (_dir, list) = list();
    let failed = catch_unwind(AssertUnwindSafe(|| decide::<()>(Err(Missing::new("a thing")), PLACE, false, &list)));
    let said = *failed.unwrap_err().downcast::<String>().unwrap();
    for part in ["suite::module::a_test needs a thing", "make setup", "scripts/setup.sh", "ALLOW_SKIP=1"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!list.exists());
}

#[test]
fn what_may_be_skipped_is_listed() {
    let (_dir, list) = list();
    for what in ["a thing", "another"] {
        assert!(decide::<()>(Err(Missing::new(what)), PLACE, true, &list).is_err());
    }
    let listed = std::fs::read_to_string(&list).unwrap();
    assert_eq!(listed, "suite::module::a_test: a thing\nsuite::module::a_test: another\n");
}

#[test]
fn a_skip_that_cannot_be_listed_is_a_failure() {
    let missing = || decide::<()>(Err(Missing::new("a thing")), PLACE, true, Path::new("/proc/none/list"));
    assert!(catch_unwind(missing).is_err());
}

#[test]
fn what_is_there_is_given() {
    let (_dir, list) = list();
    for allowed in [false, true] {
        assert_eq!(decide(Ok(5), PLACE, allowed, &list), Ok(5));
    }
    assert!(!list.exists());
    assert_eq!(file("/proc/self"), Ok(()));
    assert_eq!(file("/proc/none"), Err(Missing::new("/proc/none")));
}

/// The macro in a test of each kind, as the harness would call it.
#[test]
fn the_macro_names_the_function_that_it_stands_in() {
    fn place() -> &'static str {
        std::any::type_name_of_val(&|| ())
    }
    let said = place();
    assert!(said.split("::{{closure}}").next().unwrap().ends_with("that_it_stands_in::place"), "{said}");
    let mut passed = false;
    let mut test = || {
        let number: i32 = need!(Ok(7));
        passed = number == 7;
    };
    test();
    assert!(passed);
}
