//! Base backups: Postgres starts from them.

use bytes::{Bytes, BytesMut};
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use pageserver::page_service::PageServiceSettings;
use pageserver_api::key::rel_block_key;
use pageserver_api::reltag::RelTag;
use pageserver_api::value::Value;
use pageserver_client::{BackupOptions, BackupStream};
use test_needs::need;
use test_postgres::{Postgres, Server, tar};
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::fixture::{Fixture, rel, serve};

const WORKLOAD: &str = "
CREATE TABLE t AS SELECT i, repeat('x', i % 300) AS x FROM generate_series(1, 20000) i;
CREATE INDEX ON t (i); CREATE UNLOGGED TABLE u AS SELECT * FROM t; CREATE INDEX ON u (i);
CREATE TABLE m (i int PRIMARY KEY); INSERT INTO m VALUES (1); CREATE SEQUENCE s; SELECT nextval('s');
CREATE TABLE r (i int REFERENCES m);
CREATE DATABASE other";
pub const DIGEST: &str = "SELECT (SELECT count(*) || '/' || sum(i) || '/' || sum(length(x)) FROM t) || ' ' ||
    (SELECT count(*) FROM r) || ' ' || (SELECT count(*) FROM m) || ' ' || (SELECT count(*) FROM pg_class) || ' ' ||
    (SELECT count(*) FROM pg_database) || ' ' || (SELECT last_value FROM s)";

pub async fn collect(mut stream: BackupStream) -> Bytes {
    let mut all = BytesMut::new();
    while let Some(bytes) = stream.next().await.unwrap() {
        all.extend_from_slice(&bytes);
    }
    all.freeze()
}

/// Starts a server on the files of a backup.
fn restore(postgres: &Postgres, archive: &Bytes) -> Server {
    let server = postgres.place().restore("data", archive);
    server.configure("fsync = off\nshared_buffers = 16MB");
    server.start();
    server
}

pub fn source(postgres: &Postgres) -> Server {
    let server = postgres.start("autovacuum = off\nmax_prepared_transactions = 5");
    let space = server.place().directory("space");
    server.sql(WORKLOAD);
    server.sql(&format!("CREATE TABLESPACE space LOCATION '{space}'"));
    server.sql("CREATE TABLE in_space TABLESPACE space AS SELECT generate_series(1, 1000) AS i");
    // A prepared transaction that shares a row lock with another transaction, which makes a multixact.
    server.sql("BEGIN; INSERT INTO r VALUES (1); PREPARE TRANSACTION 'first'");
    server.sql("BEGIN; INSERT INTO r VALUES (1); COMMIT");
    server.sql("CHECKPOINT");
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_starts_from_a_full_backup() {
    let postgres = need!(Postgres::find());
    let original = source(&postgres);
    let expected = original.sql(DIGEST);
    original.stop();
    let fixture = serve(original.data(), PageServiceSettings::default()).await;
    let lsn = fixture.timeline.last_record_lsn();
    for at in [None, Some(lsn)] {
        let stream = fixture.client.fullbackup(fixture.tenant, fixture.timeline_id(), at).await.unwrap();
        let copy = restore(&postgres, &collect(stream).await);
        assert_eq!(copy.sql(DIGEST), expected);
        assert_eq!(copy.sql("SELECT count(*) FROM in_space"), "1000");
        assert_eq!(copy.sql("SELECT count(*) FROM u"), "0", "an unlogged table starts empty");
        let indexed = "SET enable_seqscan = off; SELECT x FROM t WHERE i = 777";
        assert_eq!(copy.sql(indexed).len(), 777 % 300);
        let behind = format!("SELECT pg_current_wal_lsn() - '{lsn}'::pg_lsn > 0");
        assert_eq!(copy.sql(&behind), "t");
        copy.sql("COMMIT PREPARED 'first'");
        copy.sql("INSERT INTO u VALUES (1, 'x'); UPDATE t SET x = 'y' WHERE i < 100; VACUUM; CHECKPOINT");
        copy.stop();
        copy.start();
        assert_eq!(copy.sql("SELECT count(*) FROM r"), "2");
        assert_eq!(copy.sql("SELECT count(*) FROM t WHERE x = 'y'"), "99");
    }
    fixture.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_backup_has_all_but_relations() {
    let postgres = need!(Postgres::find());
    let original = source(&postgres);
    let unlogged = original.sql("SELECT count(*) FROM pg_class WHERE relpersistence = 'u'");
    original.stop();
    let fixture = serve(original.data(), PageServiceSettings::default()).await;
    let (tenant, timeline) = (fixture.tenant, fixture.timeline_id());
    let plain = fixture.client.basebackup(tenant, timeline, BackupOptions::default()).await.unwrap();
    let plain = tar(&["-t"], &collect(plain).await);
    let options = BackupOptions { lsn: Some(fixture.timeline.last_record_lsn()), gzip: true, replica: true };
    let gzip = collect(fixture.client.basebackup(tenant, timeline, options).await.unwrap()).await;
    assert!(gzip.starts_with(&[0x1F, 0x8B]) && gzip.len() < 1 << 20, "{} bytes", gzip.len());
    assert_eq!(tar(&["-t", "-z"], &gzip), plain);
    let names: Vec<&str> = plain.lines().collect();
    for name in ["PG_VERSION", "global/pg_control", "global/pg_filenode.map", "pg_xact/0000", "base/5/PG_VERSION"] {
        assert!(names.contains(&name), "{name} is not in\n{plain}");
    }
    assert_eq!(names.iter().filter(|name| name.starts_with("pg_wal/0")).count(), 1);
    assert_eq!(names.iter().filter(|name| name.starts_with("pg_twophase/")).count(), 1);
    assert!(!names.contains(&"global/1260") && !names.contains(&"base/5/1249"));
    assert_eq!(names.iter().filter(|name| name.ends_with("_init")).count().to_string(), unlogged);
    let early = BackupOptions { lsn: Some(utils::lsn::Lsn(8)), ..BackupOptions::default() };
    let refused = fixture.client.basebackup(tenant, timeline, early).await.err().unwrap();
    assert!(refused.to_string().contains("invalid basebackup lsn"), "{refused}");
    fixture.stop().await;
}

/// Redo changes pages without updating their checksums, so a backup must set them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_full_backup_have_their_checksums() {
    let postgres = need!(Postgres::find());
    let original = postgres.start("autovacuum = off");
    original.sql("CREATE TABLE t AS SELECT i FROM generate_series(1, 5000) i");
    let rel = rel(&original.sql("SELECT pg_relation_filepath('t')"));
    original.stop();
    original.offline("pg_checksums", &["--enable"]);
    let fixture = serve(original.data(), PageServiceSettings::default()).await;
    change_without_checksum(&fixture, rel).await;
    let stream = fixture.client.fullbackup(fixture.tenant, fixture.timeline_id(), None).await.unwrap();
    let copy = restore(&postgres, &collect(stream).await);
    assert_eq!(copy.sql("SELECT count(*) FROM t"), "5000");
    copy.stop();
    copy.verify_checksums();
    fixture.stop().await;
}

/// Writes a page as redo leaves it: with its previous checksum.
async fn change_without_checksum(fixture: &Fixture, rel: RelTag) {
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    let (timeline, key) = (&fixture.timeline, rel_block_key(rel, 3));
    let lsn = timeline.last_record_lsn() + 8;
    let mut page = timeline.get(key, lsn - 8, &ctx).await.unwrap().to_vec();
    page[..8].copy_from_slice(&[0; 8]);
    let mut batch = SerializedValueBatch::default();
    batch.put(key.to_compact(), lsn, &Value::Image(page.into())).unwrap();
    timeline.put_batch(batch, &ctx).await.unwrap();
    timeline.finish_write(lsn, lsn - 8);
}
