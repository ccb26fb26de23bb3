//! Commands, limits and ends of connections.

use std::time::{Duration, SystemTime};

use futures_util::TryStreamExt;
use pageserver::page_service::PageServiceSettings;
use pageserver_api::pagestream::ProtocolVersion::V3;
use pageserver_api::pagestream::Query;
use pageserver_api::reltag::RelTag;
use pageserver_api::shard::TenantShardId;
use pageserver_client::ClientError;
use pq_proto::client::Client;
use pq_proto::frontend::{Target, put};
use pq_proto::sqlstate::SqlState;
use test_needs::need;
use test_postgres::{Postgres, tar};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use crate::fixture::{Fixture, latest, serve};

async fn check_commands(fixture: &Fixture) {
    let mut client = Client::connect(&fixture.address.parse().unwrap(), &[]).await.unwrap();
    assert_eq!(client.simple_query("SET datestyle TO 'ISO'").await.unwrap().len(), 1);
    let unknown = client.simple_query("select 1").await.unwrap_err();
    assert_eq!(unknown.sqlstate(), Some(SqlState::INTERNAL_ERROR));
    let missing = format!("pagestream_v3 {} {}", fixture.tenant, TimelineId::generate());
    assert!(client.simple_query(&missing).await.unwrap_err().to_string().contains("not found"));
    assert_eq!(client.simple_query(";").await.unwrap().len(), 0);
    assert_eq!(client.simple_query("set x").await.unwrap().len(), 1);
    client.close().await;
}

async fn check_leases(fixture: &Fixture) {
    let (tenant, lsn) = (TenantShardId::unsharded(fixture.tenant), fixture.timeline.last_record_lsn());
    let until = fixture.client.lease_lsn(tenant, fixture.timeline_id(), lsn).await.unwrap().unwrap();
    let left = until.duration_since(SystemTime::now()).unwrap();
    assert!(left > Duration::from_secs(590) && left <= Duration::from_secs(600), "{left:?}");
    assert_eq!(fixture.client.lease_lsn(tenant, fixture.timeline_id(), Lsn(8)).await.unwrap(), None);
    // The extended protocol describes the columns first.
    let mut client = Client::connect(&fixture.address.parse().unwrap(), &[]).await.unwrap();
    let buf = client.writer().buffer();
    put::parse(buf, &format!("lease lsn {tenant} {} {lsn}", fixture.timeline_id()));
    put::bind(buf);
    put::describe(buf, Target::Portal);
    put::execute(buf);
    put::sync(buf);
    client.writer().flush().await.unwrap();
    let mut tags = String::new();
    while !tags.ends_with('Z') {
        tags.push(client.receive().await.unwrap().tag());
    }
    assert_eq!(tags, "12TDCZ");
}

/// A driver that knows nothing of page servers, and names what it prepares.
async fn check_stock_driver(fixture: &Fixture) {
    let (client, connection) = tokio_postgres::connect(&fixture.address, tokio_postgres::NoTls).await.unwrap();
    let connection = tokio::spawn(connection);
    let (tenant, timeline) = (fixture.tenant, fixture.timeline_id());
    let lease = |lsn: Lsn| format!("lease lsn {tenant} {timeline} {lsn}");
    let now = client.prepare(&lease(fixture.timeline.last_record_lsn())).await.unwrap();
    let never = client.prepare(&lease(Lsn(8))).await.unwrap();
    for _ in 0..2 {
        let until: Option<String> = client.query_one(&now, &[]).await.unwrap().get("valid_until");
        assert!(until.unwrap().parse::<u64>().unwrap() > 0);
        let until: Option<String> = client.query_one(&never, &[]).await.unwrap().get(0);
        assert_eq!(until, None);
    }
    let missing = format!("basebackup {tenant} {}", TimelineId::generate());
    let refused = client.copy_out(&missing).await.err().unwrap().to_string();
    assert!(refused.contains("db error"), "{refused}");
    let backup = client.copy_out(&format!("basebackup {tenant} {timeline}")).await.unwrap();
    let backup: Vec<bytes::Bytes> = backup.try_collect().await.unwrap();
    let listed = tar(&["-t"], &backup.concat());
    assert!(listed.lines().any(|name| name == "global/pg_control"), "{listed}");
    drop((now, never, client));
    connection.await.unwrap().unwrap();
}

async fn check_bad_stream(fixture: &Fixture) {
    let mut client = Client::connect(&fixture.address.parse().unwrap(), &[]).await.unwrap();
    let command = format!("pagestream_v3 {} {}", fixture.tenant, fixture.timeline_id());
    client.send_query(&command).await.unwrap();
    assert_eq!(client.receive().await.unwrap().tag(), 'W');
    put::copy_data(client.writer().buffer(), |buf| buf.extend_from_slice(&[99; 40]));
    client.writer().flush().await.unwrap();
    assert_eq!(client.receive().await.unwrap().tag(), 'E');
    assert!(matches!(client.receive().await, Err(ClientError::Closed)));
}

/// All connections are in use; then the server stops.
async fn check_limit_and_shutdown(fixture: Fixture) {
    let rel = RelTag { spcnode: 1663, dbnode: 5, relnode: 1259, forknum: 0 };
    let stream = || fixture.client.pagestream(V3, fixture.tenant, fixture.timeline_id());
    let mut streams = vec![];
    let refused = loop {
        match stream().await {
            Ok(stream) => streams.push(stream),
            Err(error) => break error,
        }
    };
    assert_eq!((streams.len(), refused.sqlstate()), (4, Some(SqlState::TOO_MANY_CONNECTIONS)), "{refused}");
    assert!(refused.to_string().contains("the limit is 4"));
    let waits = pageserver_api::pagestream::RequestHeader {
        not_modified_since: fixture.timeline.last_record_lsn() + 800,
        ..latest(Query::Exists(rel)).header
    };
    let waits = pageserver_api::pagestream::Request { header: waits, query: Query::Exists(rel) };
    let mut idle = streams.pop().unwrap();
    let mut busy = streams.pop().unwrap();
    idle.request(&latest(Query::Exists(rel))).await.unwrap();
    let end = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fixture.cancel.cancel();
    };
    let (cut, ()) = tokio::join!(busy.request(&waits), end);
    assert_eq!(cut.unwrap_err().sqlstate(), Some(SqlState::ADMIN_SHUTDOWN));
    let (_, mut receiver) = idle.split();
    assert_eq!(receiver.receive().await.unwrap_err().sqlstate(), Some(SqlState::ADMIN_SHUTDOWN));
    tokio::time::timeout(Duration::from_secs(10), fixture.stop()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_limits_and_endings() {
    let server = need!(Postgres::find()).start("");
    server.stop();
    let settings = PageServiceSettings { max_connections: 4, ..Default::default() };
    let fixture = serve(server.data(), settings).await;
    check_commands(&fixture).await;
    check_leases(&fixture).await;
    check_stock_driver(&fixture).await;
    check_bad_stream(&fixture).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    check_limit_and_shutdown(fixture).await;
}
