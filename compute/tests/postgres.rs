//! A stock Postgres works on the file system as on a plain directory.
#![allow(clippy::disallowed_methods)]

mod support;

use support::{cluster, compute, machine};
use test_needs::need;

const LOAD: &str = "
CREATE TABLE t (id int PRIMARY KEY, v text, n numeric, a int[]);
INSERT INTO t SELECT i, repeat(md5(i::text), 1 + i % 7), i * 1.5, ARRAY[i, i % 10] FROM generate_series(1, 60000) i;
CREATE INDEX t_v ON t USING hash (v);
CREATE INDEX t_n ON t USING brin (n);
CREATE INDEX t_a ON t USING gin (a);
CREATE TABLE p (b box); INSERT INTO p SELECT box(point(i, i), point(i + 1, i + 1)) FROM generate_series(1, 5000) i;
CREATE INDEX p_b ON p USING gist (b); CREATE INDEX p_s ON p USING spgist (b);
CREATE TABLE big (s text); ALTER TABLE big ALTER s SET STORAGE external;
INSERT INTO big SELECT repeat(chr(65 + i), 300000) FROM generate_series(1, 20) i;
CREATE UNLOGGED TABLE u AS SELECT generate_series(1, 1000) i;
CREATE SEQUENCE s; SELECT nextval('s');
CREATE MATERIALIZED VIEW m AS SELECT count(*) FROM t;
SELECT lo_from_bytea(4242, 'a large object');
CREATE TABLE tail AS SELECT i, repeat('x', 500) AS f FROM generate_series(1, 20000) i;
";

const SMOKE: &str = "
UPDATE t SET v = v || 'x' WHERE id % 3 = 0; DELETE FROM t WHERE id % 5 = 0;
INSERT INTO t SELECT i, 'new', i, ARRAY[1] FROM generate_series(60001, 70000) i;
REINDEX TABLE t; CLUSTER t USING t_pkey; ANALYZE;
CREATE INDEX CONCURRENTLY t_v2 ON t (v, id); DROP INDEX CONCURRENTLY t_v;
ALTER TABLE u SET LOGGED; ALTER TABLE p SET UNLOGGED; ALTER TABLE p SET LOGGED;
BEGIN; TRUNCATE big; ROLLBACK; SELECT 1 / (count(*) / 20) FROM big;
REFRESH MATERIALIZED VIEW m;
CREATE TEMP TABLE tmp AS SELECT * FROM t; SELECT count(*) FROM tmp;
SET work_mem = '64kB'; SELECT count(*) FROM (SELECT v FROM t ORDER BY v DESC OFFSET 100) x;
CREATE TABLE part (i int) PARTITION BY RANGE (i);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (100); INSERT INTO part SELECT generate_series(0, 99);
SELECT lo_unlink(4242);
CHECKPOINT;
";

#[test]
fn a_stock_server_does_not_notice() {
    let plain = cluster(&need!(machine()));
    let place = plain.place();
    plain.sql(&format!("CREATE TABLESPACE space LOCATION '{}'", place.directory("space")));
    plain.sql("CREATE DATABASE other TABLESPACE space");
    plain.sql(LOAD);
    plain.sql_in("other", LOAD);
    plain.bench_init(2);
    plain.sql("VACUUM");
    let dumps = ["postgres", "other", "template1"].map(|db| plain.dump(db));
    plain.stop();

    let compute = compute(&plain, &[]);
    let server = &compute.server;
    for (db, dump) in ["postgres", "other", "template1"].iter().zip(&dumps) {
        assert!(server.dump(db) == *dump, "the dump of {db} differs");
    }
    let checked = server.amcheck();
    println!("dumps of 3 databases are equal ({} bytes); {checked} relations verified", dumps.concat().len());

    for db in ["postgres", "other"] {
        server.sql_in(db, SMOKE);
        // The last two thirds are truncated; then the file grows again.
        server.sql_in(db, "DELETE FROM tail WHERE i > 6000");
        server.sql_in(db, "VACUUM tail");
        let cut: u64 = server.sql_in(db, "SELECT pg_relation_size('tail')").parse().unwrap();
        assert!(cut < 5 << 20, "{cut} bytes are left");
        server.sql_in(db, "INSERT INTO tail SELECT i, repeat('y', 500) FROM generate_series(6001, 20000) i");
        assert_eq!(server.sql_in(db, "SELECT count(*), sum(i), count(DISTINCT f) FROM tail"), "20000|200010000|2");
        server.sql_in(db, "VACUUM FULL");
    }
    for (name, how) in [("logged", "wal_log"), ("copied", "file_copy")] {
        server.sql_in("template1", &format!("CREATE DATABASE {name} TEMPLATE other STRATEGY {how}"));
    }
    server.sql("CREATE DATABASE cold TEMPLATE template0 STRATEGY file_copy");
    server.sql("CREATE TABLE moved TABLESPACE space AS SELECT generate_series(1, 1000) i");
    server.sql("ALTER TABLE t SET TABLESPACE space");
    server.sql("ALTER DATABASE logged SET TABLESPACE pg_default");
    server.sql(&format!("CREATE TABLESPACE second LOCATION '{}'", place.directory("second")));
    server.sql("ALTER TABLE tail SET TABLESPACE second");
    server.sql("DROP DATABASE cold");
    let dumps = ["postgres", "other", "logged", "copied"].map(|db| server.dump(db));
    assert!(dumps[1] == dumps[2] && dumps[1] == dumps[3], "copies of a database differ from it");

    server.stop();
    compute.unmount();
    compute.mount();
    server.start();
    for (db, dump) in ["postgres", "other", "logged", "copied"].iter().zip(&dumps) {
        assert!(server.dump(db) == *dump, "the dump of {db} differs after a restart");
    }
    println!("{} relations verified after smoke test and restart", server.amcheck());
    server.sql("DROP DATABASE other");
    server.stop();
    println!("{}", server.verify_checksums());
}
