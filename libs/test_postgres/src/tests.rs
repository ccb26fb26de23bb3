use test_needs::need;

use super::*;

#[test]
fn what_runs_ends_and_what_is_there_goes_with_its_owner() {
    let postgres = need!(Postgres::find());
    let server = postgres.start("");
    let place = server.place().path().to_owned();
    assert_eq!(server.sql("SELECT 1; SELECT 'two'"), "1\ntwo");
    let processes = server.processes();
    assert!(processes.contains(&server.postmaster()) && processes.len() > 4, "{processes:?}");
    drop(server);
    assert!(processes.iter().all(|pid| !process::is_of_server(*pid, place.join("data").as_std_path())));
    assert!(!place.exists());
}

#[test]
fn a_killed_server_starts_again_and_a_standby_follows() {
    let postgres = need!(Postgres::find());
    let place = postgres.place();
    let server = place.start("primary", "");
    server.bench_init(1);
    server.kill();
    server.start();
    server.bench(&["-n", "-t", "10"]);
    server.verify_balances();
    let standby = server.standby("standby");
    assert_ne!(standby.port(), server.port());
    assert_eq!(standby.sql("SELECT pg_is_in_recovery()"), "t");
    standby.promote();
    standby.verify_balances();
    standby.stop();
    standby.verify_checksums();
}

#[test]
fn a_server_that_does_not_start_is_a_failure_that_says_why() {
    let postgres = need!(Postgres::find());
    let failed = std::panic::catch_unwind(|| postgres.start("no_such_setting = 1"));
    let said = *failed.unwrap_err().downcast::<String>().unwrap();
    assert!(said.contains("cannot start") && said.contains("no_such_setting"), "{said}");
}
