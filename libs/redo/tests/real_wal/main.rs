//! Redo against real servers: every page after every record must equal the check image that the server put into the
//! record (`wal_consistency_checking`), and in the end the files of the stopped server.
//!
//! Runs with each major version whose server is installed (`/usr/lib/postgresql/<major>/bin`, or where the environment
//! variable `PG<major>_BIN_DIR` says), and needs up to 2 GB in /tmp for a minute or two per version.

mod cluster;
mod files;
mod replay;
mod slru;
mod torture;

use std::fs;
use std::path::Path;

use bytes::Bytes;
use postgres_formats::control_file::ControlFile;
use postgres_formats::version::PgVersion;
use redo::RedoContext;
use utils::lsn::Lsn;
use wal_decoder::stream::{WalError, WalStart, WalStreamConfig, WalStreamDecoder};

use cluster::{Cluster, find_binaries};
use files::DataDir;
use replay::Replay;
use slru::SlruReplay;

const SEGMENT: u32 = 16 << 20;

/// All check images, none applied: every record's own redo is exercised.
#[test]
fn every_change_equals_its_check_image() {
    let files = ["setup", "heap", "btree", "index", "catalog"].map(|part| format!("workload_{part}.sql"));
    for_each_server(|version, bin| {
        let no_checksums: &[&str] = if version >= PgVersion::V18 { &["--no-data-checksums"] } else { &[] };
        let replay = run(version, Cluster::init(bin, no_checksums, "full_page_writes = off\n"), |cluster| {
            // The fastest that the server was built with; only to save space.
            assert!(compress_images(cluster, "lz4") || compress_images(cluster, "on"));
            cluster.psql_files(&files.each_ref().map(String::as_str));
            concurrent(cluster, "6");
        });
        let types = replay.counts.values().filter(|c| c.compared > 0).count();
        assert!(types >= MIN_TYPES, "only {types} record types were compared");
    });
}

/// Record types with check images that the workload produces on every version; all there are without bloom's.
const MIN_TYPES: usize = 68;

/// Full-page images of all compressions, hint images and checksums.
#[test]
fn full_page_images_of_every_kind() {
    for_each_server(|version, bin| {
        let replay = run(version, Cluster::init(bin, &["-k"], "full_page_writes = on\n"), |cluster| {
            // "on" is pglz; a server may have been built without the others.
            for compression in ["off", "on", "lz4", "zstd"] {
                if compress_images(cluster, compression) {
                    images_of_many_pages(cluster);
                }
            }
        });
        let images = |name| replay.counts.get(name).map_or(0, |c| c.images);
        assert!(images("XLOG/FPI") > 0 && images("XLOG/FPI_FOR_HINT") > 0 && images("Btree/INSERT_LEAF") > 0);
    });
}

/// Sets the compression of images; false if the server does not know it.
fn compress_images(cluster: &Cluster, compression: &str) -> bool {
    cluster.psql(&format!("ALTER SYSTEM SET wal_compression = '{compression}'"))
        && cluster.psql("SELECT pg_reload_conf()")
        && cluster.psql("CHECKPOINT")
}

fn images_of_many_pages(cluster: &Cluster) {
    cluster.pgbench(&["-i", "-q", "-s", "1"], None);
    assert!(cluster.psql("CHECKPOINT"));
    assert!(cluster.psql("VACUUM FREEZE pgbench_accounts"));
    assert!(cluster.psql("CHECKPOINT"));
    cluster.pgbench(&["-n", "-c", "2", "-t", "300"], None);
    assert!(cluster.psql("SELECT sum(abalance) FROM pgbench_accounts"));
}

/// Transactions that meet on few rows: speculative insertions, lock chains, multixacts.
fn concurrent(cluster: &Cluster, seconds: &str) {
    assert!(cluster.psql(
        "CREATE TABLE pgb(id int PRIMARY KEY, v int, k int);
         INSERT INTO pgb SELECT g, 0, g FROM generate_series(1, 50) g;
         CREATE INDEX pgb_k ON pgb(k)",
    ));
    cluster.pgbench(&["-n", "-c", "8", "-j", "2", "-T", seconds], Some("workload_pgbench.sql"));
}

fn for_each_server(test: impl Fn(PgVersion, &Path)) {
    let mut any = false;
    for version in PgVersion::ALL {
        if let Some(bin) = find_binaries(version.major()) {
            println!("PostgreSQL {}", version.major());
            test(version, &bin);
            any = true;
        }
    }
    if !any {
        println!("skipped: no PostgreSQL server is installed");
    }
}

/// Runs a workload on a fresh cluster, then replays the WAL it wrote.
fn run(version: PgVersion, mut cluster: Cluster, workload: impl FnOnce(&Cluster)) -> Replay {
    let base = cluster.copy_base();
    cluster.start();
    workload(&cluster);
    cluster.stop();

    let control = fs::read(base.join("global/pg_control")).unwrap();
    let control = ControlFile::decode(&control).unwrap();
    let ctx = RedoContext {
        version,
        data_checksums: control.fields.data_checksum_version != 0,
        wal_log_hints: control.fields.wal_log_hints,
    };
    let mut replay = Replay::new(ctx, DataDir::new(base.clone()), SlruReplay::new(version, base));
    replay_wal(version, &cluster.data().join("pg_wal"), control.fields.checkpoint, &mut replay);
    let compared = replay.compare_files(&mut DataDir::new(cluster.data()));
    replay.print_counts();
    let (slru_pages, slru_problems) = replay.slru.compare_files(&cluster.data());
    println!("pages compared with the stopped server's files: {compared:?}, {slru_pages} SLRU pages");
    slru_problems.iter().for_each(|problem| println!("{problem}"));

    assert!(replay.records > 1000, "only {} records", replay.records);
    assert!(replay.problems.is_empty(), "{} problems", replay.problems.len());
    assert!(slru_problems.is_empty(), "{} SLRU problems", slru_problems.len());
    assert!(replay.counts.values().map(|c| c.compared).sum::<u64>() > 1000);
    // Nothing is skipped either: the replay starts with the very pages that the server started with.
    assert!(replay.counts.values().all(|c| c.unsupported == 0 && c.skipped == 0));
    replay
}

/// Replays all WAL from `start` to its end.
fn replay_wal(version: PgVersion, pg_wal: &Path, start: Lsn, replay: &mut Replay) {
    let mut segments: Vec<_> = fs::read_dir(pg_wal).unwrap().map(|entry| entry.unwrap().path()).collect();
    segments.retain(|path| path.file_name().is_some_and(|name| name.len() == 24));
    segments.sort();
    let first = Lsn(start.0 / u64::from(SEGMENT) * u64::from(SEGMENT));
    let config = WalStreamConfig {
        version,
        segment_size: SEGMENT,
        system_identifier: None,
        feed_from: first,
        start: WalStart::Record { lsn: start, previous: None },
    };
    let mut decoder = WalStreamDecoder::new(&config).unwrap();
    for segment in segments {
        decoder.feed(Bytes::from(fs::read(segment).unwrap()));
        loop {
            match decoder.next() {
                Ok(Some(record)) => replay.record(&record.bytes, record.end.0),
                Ok(None) => break,
                Err(WalError::EndOfWal { .. }) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }
}
