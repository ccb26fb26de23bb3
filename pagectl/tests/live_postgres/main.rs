//! Follows live Postgres 15 servers through restarts, failovers and failures.

mod small_disk;
mod world;

use std::time::Duration;

use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use pageserver::follow::FollowRequest;
use pageserver::walreceiver::WalReceiverState;
use pageserver_api::key::CHECKPOINT_KEY;
use test_needs::need;
use test_postgres::{Postgres, Server};
use world::{World, until};

/// Servers have room for all WAL of a test, and log hint bit changes.
const SETTINGS: &str = "
shared_buffers = 64MB
max_wal_size = 1GB
min_wal_size = 80MB
max_prepared_transactions = 10
wal_log_hints = on
";

/// Tables of all kinds, in three tablespaces, one of them large.
fn fill(server: &Server) {
    for name in ["ts1", "ts2"] {
        let dir = server.place().directory(name);
        server.sql(&format!("create tablespace {name} location '{dir}'"));
    }
    server.sql(
        "create unlogged table u(a int primary key, b text);\n\
         insert into u select i, repeat('x', 100) from generate_series(1, 250000) i;\n\
         create table big(a int, b text) tablespace ts1;\n\
         insert into big select i, repeat(md5(i::text), 8) from generate_series(1, 100000) i;\n\
         create index on big(a) tablespace ts2;\n\
         create temp table t as select generate_series(1, 1000);\n\
         begin; create table prepared(a int); insert into prepared values (1); prepare transaction 'p1'",
    );
    server.bench_init(5);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_copied_under_load_and_followed_through_restarts() {
    let place = need!(Postgres::find()).place();
    let server = place.start("data", SETTINGS);
    fill(&server);
    let mut world = World::new().await;
    let mut load = server.start_bench(&["-n", "-c", "4", "-T", "600"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    world.follow(world.request(server.connstr())).await.unwrap();
    let origin = *world.timeline().origin();
    assert!(origin.consistent_lsn > origin.import_lsn);
    server.sql("create table during as select generate_series(1, 100000) a;\ncommit prepared 'p1';\ncheckpoint");
    world.wait_for(server.current_lsn()).await;

    // Both sides restart, cleanly and not.
    load.kill().unwrap();
    load.wait().unwrap();
    server.stop();
    server.start();
    server.sql("update big set b = b || 'q' where a % 7 = 0");
    world.wait_for(server.current_lsn()).await;
    let mut load = server.start_bench(&["-n", "-c", "4", "-T", "600"]);
    tokio::time::sleep(Duration::from_secs(1)).await;
    server.kill();
    load.wait().unwrap();
    server.start();
    server.sql("create table after_crash as select generate_series(1, 1000) a;\nvacuum big");
    world.wait_for(server.current_lsn()).await;
    world.restart().await;
    server.sql("drop table during;\ninsert into after_crash select generate_series(1, 1000)");
    world.wait_for(server.current_lsn()).await;
    // The server is told what is durable: its slot advances.
    let slot = || server.sql("select restart_lsn from pg_replication_slots where active");
    let kept: utils::lsn::Lsn = slot().parse().unwrap();
    assert!(kept > origin.consistent_lsn, "{kept}");
    world.verify(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_copied_and_followed_when_it_is_promoted() {
    let place = need!(Postgres::find()).place();
    let primary = place.start("primary", SETTINGS);
    primary.bench_init(5);
    let standby = primary.standby("standby");
    let world = World::new().await;
    world.follow(world.request(standby.connstr())).await.unwrap();
    primary.bench(&["-n", "-c", "2", "-t", "500"]);
    let last = primary.current_lsn();
    world.wait_for(last).await;
    primary.kill();
    standby.promote();
    standby.bench(&["-n", "-c", "2", "-t", "500"]);
    world.wait_for(standby.current_lsn()).await;
    let status = world.receivers.status(world.id.0, world.id.1).unwrap();
    assert_eq!(status.postgres_timeline, Some(2));
    world.verify(&standby).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_host_takes_over_unless_it_has_gone_another_way() {
    let place = need!(Postgres::find()).place();
    let primary = place.start("primary", SETTINGS);
    primary.bench_init(2);
    let (follows, strays) = (primary.standby("follows"), primary.standby("strays"));
    let (first, second) = (World::new().await, World::new().await);
    first.follow(first.request(primary.connstr_with(&follows))).await.unwrap();
    second.follow(second.request(primary.connstr_with(&strays))).await.unwrap();
    // One standby has all WAL when the primary stops, the other does not.
    let has_all = |standby: &Server| {
        let (standby, last) = (standby.sql("select pg_last_wal_replay_lsn()"), primary.current_lsn());
        standby.parse::<utils::lsn::Lsn>().unwrap() >= last
    };
    until("a standby", || has_all(&strays)).await;
    strays.stop();
    primary.sql("create table more as select generate_series(1, 10000)");
    until("a standby", || has_all(&follows)).await;
    first.wait_for(primary.current_lsn()).await;
    second.wait_for(primary.current_lsn()).await;
    primary.kill();
    follows.promote();
    strays.start();
    strays.promote();
    follows.bench(&["-n", "-c", "2", "-t", "200"]);
    first.wait_for(follows.current_lsn()).await;
    let error = second.wait_for_failure().await;
    assert!(error.contains("left its timeline 1") && error.contains("diverged"), "{error}");
    first.verify(&follows).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_slot_is_made_again_only_while_the_wal_is_there() {
    let place = need!(Postgres::find()).place();
    let server = place.start("data", &format!("{SETTINGS}max_wal_size = 64MB\nmin_wal_size = 32MB\nwal_keep_size = 0"));
    server.bench_init(1);
    let mut world = World::new().await;
    world.follow(world.request(server.connstr())).await.unwrap();
    world.wait_for(server.current_lsn()).await;
    let drop_slot = || server.sql("select pg_drop_replication_slot(slot_name) from pg_replication_slots");
    let slots = || server.sql("select count(*) from pg_replication_slots");

    world.stop().await;
    drop_slot();
    server.sql("create table t as select generate_series(1, 1000)");
    world.restart().await;
    world.wait_for(server.current_lsn()).await;
    assert_eq!(slots(), "1");

    world.stop().await;
    drop_slot();
    let before = world.id;
    for _ in 0..6 {
        server.sql(
            "create table x as select generate_series(1, 300000);\ndrop table x;\nselect pg_switch_wal();\ncheckpoint",
        );
    }
    world.restart().await;
    let error = world.wait_for_failure().await;
    assert!(error.contains("has already been removed") && error.contains("follow it anew"), "{error}");
    until("the useless slot to go", || slots() == "0").await;
    // What is stored remains readable.
    assert!(world.timeline().check_readable(world.timeline().last_record_lsn()).is_ok());
    assert_eq!(before, world.id);
    world.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attach_that_fails_or_is_cancelled_leaves_nothing() {
    let place = need!(Postgres::find()).place();
    let server = place.start("data", SETTINGS);
    fill(&server);
    let slots = || server.sql("select string_agg(slot_name, ',') from pg_replication_slots");
    let world = World::new().await;

    server.sql("select pg_create_physical_replication_slot('taken')");
    let request = FollowRequest { slot: Some("taken".to_owned()), ..world.request(server.connstr()) };
    let error = world.follow(request).await.unwrap_err();
    assert!(error.contains("slot taken exists already"), "{error}");
    let request = FollowRequest { slot: Some("no-name".to_owned()), ..world.request(server.connstr()) };
    assert!(world.follow(request).await.unwrap_err().contains("no name for a slot"));
    let nowhere = format!("{} password=s3cret", server.connstr().replace("port=", "port=1"));
    let error = world.follow(world.request(nowhere)).await.unwrap_err();
    assert!(error.contains("cannot connect") && !error.contains("s3cret"), "{error}");
    assert!(!world.has_directory() && world.manager.tenants().is_empty());
    assert_eq!(slots(), "taken");

    // A base backup that is cancelled.
    world.follow_jobs.start(world.request(server.connstr())).unwrap();
    let status = || world.follow_jobs.status(world.id.0, world.id.1).unwrap();
    until("the copy to begin", || status().bytes > 0).await;
    let again = world.follow_jobs.start(world.request(server.connstr())).unwrap_err().to_string();
    assert!(again.contains("being followed already"), "{again}");
    world.follow_jobs.cancel(world.id.0, world.id.1).await;
    assert_eq!(status().error.as_deref(), Some("cancelled"));
    assert!(!world.has_directory() && world.manager.tenants().is_empty());
    assert_eq!(slots(), "taken");

    // A slot of ours that a crash left behind is taken over, and the same request succeeds.
    server.sql(&format!("select pg_create_physical_replication_slot('pageserver_{}')", world.id.1));
    world.follow(world.request(server.connstr())).await.unwrap();
    let again = world.follow_jobs.start(world.request(server.connstr())).unwrap_err().to_string();
    assert!(again.contains("exists already"), "{again}");
    assert!(world.receiver_state().is_some());
    world.verify(&server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_disk_stops_the_intake_but_not_the_reads_until_there_is_room() {
    let postgres = need!(Postgres::find());
    need!(test_needs::root());
    let work = camino_tempfile::tempdir().unwrap();
    let disk = need!(small_disk::SmallDisk::mount(&work.path().join("disk"), 150));
    let place = postgres.place();
    let server = place.start("data", SETTINGS);
    server.bench_init(2);
    let world = World::within(work, "disk").await;
    world.follow(world.request(server.connstr())).await.unwrap();
    // Wide rows, because bytes matter here and each record costs time.
    server.sql("create table filler as select a, repeat(md5(a::text), 40) b from generate_series(1, 130000) a");
    let is_full = |error: String| error.contains("No space left") || error.contains("the local disk has no room");
    until("the disk to be full", || world.receiver_error().is_some_and(is_full)).await;
    assert_eq!(world.receiver_state(), Some(WalReceiverState::Retrying));
    let timeline = world.timeline();
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    let value = timeline.get(CHECKPOINT_KEY, timeline.last_record_lsn(), &ctx).await.unwrap();
    assert!(!value.is_empty());
    drop(timeline);
    disk.resize(1500);
    world.wait_for(server.current_lsn()).await;
    world.verify(&server).await;
    drop((world, disk));
}
