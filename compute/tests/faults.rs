//! Kills processes and severs connections while Postgres works.
#![allow(clippy::disallowed_methods)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use support::{Compute, cluster, compute, figure, machine};
use test_needs::need;
use test_postgres::process::{await_end, kill, of_server, wait_until};
use test_postgres::{Postgres, Server};

fn loaded(postgres: &Postgres, args: &[&str]) -> Compute {
    let plain = cluster(postgres);
    plain.bench_init(4);
    plain.stop();
    compute(&plain, args)
}

fn finished(child: std::process::Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.into_owned())
}

/// Creates and drops tables until told to stop; returns how many.
fn churn(server: &Server, stop: &AtomicBool) -> u32 {
    let mut done = 0;
    while !stop.load(Ordering::Relaxed) {
        let sql = "CREATE TABLE churn AS SELECT i, md5(i::text) FROM generate_series(1, 5000) i; \
                   CREATE INDEX ON churn (i); VACUUM FULL pgbench_tellers; DROP TABLE churn";
        for statement in sql.split(';') {
            server.sql(statement);
        }
        done += 1;
    }
    done
}

#[test]
fn a_killed_daemon_costs_no_transaction() {
    let compute = loaded(&need!(machine()), &["--delay-ms=1"]);
    let server = &compute.server;
    let stop = AtomicBool::new(false);
    let kills = 12;
    let (text, churned) = std::thread::scope(|scope| {
        let bench = server.start_bench(&["-c", "4", "-T", "25"]);
        let churner = scope.spawn(|| churn(server, &stop));
        for _ in 0..kills {
            std::thread::sleep(Duration::from_millis(1500));
            compute.kill_daemon();
        }
        let (success, text) = finished(bench);
        stop.store(true, Ordering::Relaxed);
        assert!(success, "{text}");
        (text, churner.join().unwrap())
    });
    let transactions = figure(&text, "number of transactions actually processed:");
    let failed = figure(&text, "number of failed transactions:");
    println!("{kills} daemons killed: {transactions} transactions, {failed} failed; {churned} rounds of DDL");
    assert!(transactions > 100.0 && churned > 0);
    assert_eq!(failed, 0.0);
    // Autovacuum gives way to VACUUM FULL, whether daemons are killed or not.
    let log = server.log();
    let is_wrong = |line: &&str| line.contains("ERROR:") && !line.ends_with("canceling autovacuum task");
    let wrong: Vec<&str> = log.lines().filter(|line| is_wrong(line) || line.contains("PANIC:")).collect();
    assert!(wrong.is_empty(), "{wrong:?}: {log}");
    server.verify_balances();
    println!("{} relations verified", server.amcheck());
    server.stop();
    server.verify_checksums();
}

/// Keeps watching mounts and processes: once a new mount exists, no process of the old server may be alive.
fn watch(compute: &Compute, before: &str, old: &[i32], stop: &AtomicBool) -> (u32, u32) {
    let (mut looks, mut remounted) = (0, 0);
    while !stop.load(Ordering::Relaxed) {
        // The mount first, then the processes: a process that ends in between can only hide a mistake, not feign one.
        if compute.device().is_some_and(|device| device != before) {
            let alive: Vec<_> = of_server(&compute.layout.data()).into_iter().filter(|pid| old.contains(pid)).collect();
            assert!(alive.is_empty(), "mounted again while {alive:?} of the old server live");
            let gone = old.iter().all(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_err());
            assert!(gone, "mounted again while some of {old:?} live");
            remounted += 1;
        }
        looks += 1;
    }
    (looks, remounted)
}

#[test]
fn the_loss_of_the_connection_kills_postgres_before_anything_is_mounted() {
    let compute = loaded(&need!(machine()), &[]);
    let server = &compute.server;
    for round in 0..3 {
        let bench = server.start_bench(&["-c", "4", "-T", "60", "-n"]);
        std::thread::sleep(Duration::from_secs(3));
        let (postmaster, old) = (server.postmaster(), server.processes());
        assert!(old.contains(&postmaster) && old.len() > 5, "{old:?}");
        let before = compute.device().unwrap();
        let pin = compute.pin();
        let stop = AtomicBool::new(false);
        let (looks, remounted) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(&compute, &before, &old, &stop));
            if round < 2 {
                compute.lose_connection();
            } else {
                // Everything dies, and the file system is started anew.
                kill(compute.supervisor());
                kill(compute.daemon());
                wait_until("end of the supervisor", || {
                    compute::supervisor::launch::supervisor(&compute.layout).unwrap().is_none()
                });
                compute.mount();
            }
            let seen = std::time::Instant::now();
            while seen.elapsed() < Duration::from_secs(30) && compute.device().is_none_or(|device| device == before) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(300));
            stop.store(true, Ordering::Relaxed);
            watcher.join().unwrap()
        });
        drop(pin);
        let (success, text) = finished(bench);
        assert!(!success, "{text}");
        await_end(&old);
        wait_until("file system", || compute.layout.data().join("PG_VERSION").exists());
        server.start();
        server.verify_balances();
        println!(
            "round {round}: {} processes were gone before the new mount ({looks} looks, {remounted} after it); \
                  {} relations verified",
            old.len(),
            server.amcheck()
        );
        assert!(remounted > 0);
    }
}

#[test]
fn a_killed_server_recovers() {
    let compute = loaded(&need!(machine()), &["--delay-ms=1"]);
    let server = &compute.server;
    let rounds = 5;
    let mut acknowledged = 0;
    for round in 0..rounds {
        let prefix = format!("--log-prefix=acknowledged{round}");
        let bench = server.start_bench(&["-c", "4", "-T", "60", "-n", "-l", &prefix]);
        std::thread::sleep(Duration::from_millis(2000 + round * 700));
        let old = server.processes();
        kill(server.postmaster());
        old.iter().copied().for_each(kill);
        await_end(&old);
        let (success, text) = finished(bench);
        assert!(!success, "{text}");
        server.start();
        server.verify_balances();
        acknowledged += std::fs::read_dir(server.place().path())
            .unwrap()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| path.to_string_lossy().contains(&format!("acknowledged{round}.")))
            // The last line may be incomplete.
            .map(|path| std::fs::read_to_string(path).unwrap().matches('\n').count())
            .sum::<usize>();
        let kept: usize = server.sql("SELECT count(*) FROM pgbench_history").parse().unwrap();
        println!("round {round}: {acknowledged} transactions acknowledged so far, {kept} are there");
        assert!(kept >= acknowledged && acknowledged > 0);
    }
    println!("{} relations verified", server.amcheck());
}
