//! Physical replication from a real Postgres.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use bytes::BytesMut;
use pq_proto::client::ClientError;
use pq_proto::replication::{BackupEvent, BaseBackupOptions, PhysicalEvent, ReplicationClient, StandbyStatus};
use pq_proto::sqlstate::SqlState;
use test_needs::need;
use test_postgres::{Postgres, Server, tar};
use utils::lsn::Lsn;

/// All segments are kept, because they are compared.
const SETTINGS: &str = "autovacuum = off\nwal_keep_size = 1GB";
const SEGMENT: u64 = 16 << 20;

async fn replication(server: &Server) -> ReplicationClient {
    ReplicationClient::connect(&server.connstr().parse().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn identity_settings_and_slots() {
    let server = need!(Postgres::find()).start(SETTINGS);
    let mut client = replication(&server).await;
    let identity = client.identify_system().await.unwrap();
    assert_eq!(identity.timeline, 1);
    let system_id = server.sql("SELECT system_identifier FROM pg_control_system()");
    assert_eq!(identity.system_id.to_string(), system_id);
    assert!(identity.flush_lsn > Lsn(0x100_0000));
    assert_eq!(client.show("wal_segment_size").await.unwrap(), "16MB");
    let unknown = client.show("no_such_setting").await.unwrap_err();
    assert_eq!(unknown.sqlstate().unwrap().as_str(), "42704");

    assert_eq!(client.read_slot("s").await.unwrap(), None);
    client.create_physical_slot("s", true).await.unwrap();
    let again = client.create_physical_slot("s", true).await.unwrap_err();
    assert_eq!(again.sqlstate(), Some(SqlState::DUPLICATE_OBJECT));
    client.ensure_physical_slot("s", true).await.unwrap();
    let slot = client.read_slot("s").await.unwrap().unwrap();
    assert!(slot.restart_lsn.unwrap() > Lsn(0x100_0000) && slot.restart_timeline == Some(1));
    client.drop_slot("s").await.unwrap();
    assert_eq!(client.drop_slot("s").await.unwrap_err().sqlstate(), Some(SqlState::UNDEFINED_OBJECT));
    client.close().await;
}

/// Archives by name; keeps canceling `next`, which must lose nothing.
async fn receive_backup(client: ReplicationClient) -> (BTreeMap<String, BytesMut>, ReplicationClient) {
    let mut backup = client.base_backup(&BaseBackupOptions { wal: true, ..Default::default() }).await.unwrap();
    assert_eq!(backup.tablespaces().len(), 2);
    let (mut archives, mut name, mut progress) = (BTreeMap::<_, BytesMut>::new(), String::new(), 0);
    loop {
        let Ok(event) = tokio::time::timeout(Duration::from_micros(300), backup.next()).await else { continue };
        match event.unwrap() {
            None => break,
            Some(BackupEvent::NewArchive { name: next, spcoid, path }) => {
                assert_eq!(spcoid.is_some(), path.is_some());
                name = next;
            }
            Some(BackupEvent::Data(bytes)) => archives.entry(name.clone()).or_default().extend_from_slice(&bytes),
            Some(BackupEvent::Progress(bytes)) => progress = bytes,
        }
    }
    assert!(progress > 0);
    let (start, end) = (backup.start(), backup.end().unwrap());
    assert!(start.lsn < end.lsn && start.timeline == 1 && end.timeline == 1);
    (archives, backup.into_client().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_base_backup_arrives_whole() {
    let server = need!(Postgres::find()).start(SETTINGS);
    let space = server.place().directory("space");
    server.sql(&format!("CREATE TABLESPACE space LOCATION '{space}'"));
    server.sql("CREATE TABLE t TABLESPACE space AS SELECT generate_series(1, 100000) AS i");
    let file = server.sql("SELECT pg_relation_filepath('t')");
    let (archives, mut client) = receive_backup(replication(&server).await).await;
    let oid = file.split('/').nth(1).unwrap();
    let base = tar(&["-t"], &archives["base.tar"]);
    assert!(base.contains("backup_label"));
    for name in ["global/pg_control", "pg_xact/0000", "pg_wal/0000000100000000"] {
        assert!(base.contains(name), "{name} is not in\n{base}");
    }
    let inside = file.splitn(3, '/').nth(2).unwrap();
    assert!(tar(&["-t"], &archives[&format!("{oid}.tar")]).contains(inside));
    assert_eq!(client.identify_system().await.unwrap().timeline, 1);
}

/// Collects WAL up to `until` from a stream while it keeps canceling `next`.
async fn stream(client: ReplicationClient, slot: &str, from: Lsn, until: Lsn) -> Vec<u8> {
    let mut stream = client.start_physical(Some(slot), from, 1).await.unwrap();
    let mut wal = vec![];
    let mut keepalive = false;
    while from + (wal.len() as u64) < until || !keepalive {
        let Ok(event) = tokio::time::timeout(Duration::from_micros(500), stream.next()).await else {
            let lsn = from + wal.len() as u64;
            let status = StandbyStatus { write: lsn, flush: lsn, apply: lsn, reply_requested: true };
            stream.send_status(status).await.unwrap();
            continue;
        };
        match event.unwrap() {
            PhysicalEvent::XLogData { start, bytes, server_end } => {
                assert!(start == from + wal.len() as u64 && server_end >= start);
                wal.extend_from_slice(&bytes);
            }
            PhysicalEvent::KeepAlive { server_end, .. } => keepalive = server_end >= until,
            other => panic!("{other:?}"),
        }
    }
    wal
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wal_arrives_and_a_timeline_ends() {
    let server = need!(Postgres::find()).start(SETTINGS);
    let mut client = replication(&server).await;
    client.create_physical_slot("w", true).await.unwrap();
    server.sql("CREATE TABLE t AS SELECT generate_series(1, 300000) AS i");
    let until: Lsn = server.sql("SELECT pg_current_wal_flush_lsn()").parse().unwrap();
    let mut ahead = replication(&server).await.start_physical(None, until + (1 << 30), 1).await.unwrap();
    let ahead = ahead.next().await.unwrap_err();
    assert!(ahead.to_string().contains("ahead of the WAL flush position"), "{ahead}");
    let from = Lsn(0x100_0000);
    let wal = stream(client, "w", from, until).await;
    assert!(wal.len() as u64 > SEGMENT);
    let first = fs::read(server.data().join("pg_wal/000000010000000000000001")).unwrap();
    assert!(wal[..SEGMENT as usize] == first[..]);
    let flushed = replication(&server).await.read_slot("w").await.unwrap().unwrap().restart_lsn.unwrap();
    assert!(flushed >= until, "{flushed} {until}");

    server.stop();
    fs::write(server.data().join("recovery.signal"), "").unwrap();
    server.own();
    server.configure("restore_command = 'false'");
    server.start();
    // It answers before it is promoted.
    let mut client = replication(&server).await;
    for _ in 0..600 {
        if client.identify_system().await.unwrap().timeline == 2 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(client.identify_system().await.unwrap().timeline, 2);
    let history = client.timeline_history(2).await.unwrap();
    assert_eq!(history.filename, "00000002.history");
    let text = String::from_utf8(history.content.to_vec()).unwrap();
    let mut stream = client.start_physical(None, until.segment_start(SEGMENT), 1).await.unwrap();
    let (next_timeline, switch_lsn) = loop {
        match tokio::time::timeout(Duration::from_secs(20), stream.next()).await.unwrap().unwrap() {
            PhysicalEvent::EndOfTimeline { next_timeline, switch_lsn } => break (next_timeline, switch_lsn),
            _ => stream.send_status(StandbyStatus::default()).await.unwrap(),
        }
    };
    assert_eq!(next_timeline, 2);
    assert!(switch_lsn > until && text.contains(&switch_lsn.to_string()), "{switch_lsn} {text}");
    assert!(matches!(stream.next().await, Err(ClientError::Closed)));
    let client = stream.into_client().unwrap();
    // Nothing of timeline 1 is left from here on: only its end is reported.
    let mut none = client.start_physical(None, switch_lsn, 1).await.unwrap();
    assert_eq!(none.next().await.unwrap(), PhysicalEvent::EndOfTimeline { next_timeline: 2, switch_lsn });
    let mut second = none.into_client().unwrap().start_physical(None, switch_lsn, 2).await.unwrap();
    server.sql("CREATE TABLE u()");
    assert!(matches!(second.next().await.unwrap(), PhysicalEvent::XLogData { start, .. } if start == switch_lsn));
    // A server that stops waits until the client has everything, then ends the stream.
    let stop = std::thread::spawn(move || server.stop());
    let mut at = switch_lsn;
    loop {
        match second.next().await {
            Ok(PhysicalEvent::XLogData { start, bytes, .. }) => at = start + bytes.len() as u64,
            Ok(_) => {}
            Err(error) => break assert!(matches!(error, ClientError::Closed), "{error:?}"),
        }
        let status = StandbyStatus { write: at, flush: at, apply: at, reply_requested: false };
        // The server may be gone by now.
        let _ = second.send_status(status).await;
    }
    stop.join().unwrap();
}
