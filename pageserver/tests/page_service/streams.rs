//! Streams of requests for pages.

use std::fs;
use std::time::Duration;

use bytes::Bytes;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use pageserver::page_service::PageServiceSettings;
use pageserver_api::key::{rel_block_key, rel_size_key};
use pageserver_api::pagestream::ProtocolVersion::{V2, V3};
use pageserver_api::pagestream::{Answer, Query};
use pageserver_api::reltag::{RelTag, SlruKind};
use pageserver_api::value::Value;
use test_needs::need;
use test_postgres::{Postgres, Server};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use crate::fixture::{Fixture, at, error_text, latest, rel, serve};

const PAGE: usize = 8192;

struct Table {
    server: Server,
    rel: RelTag,
    file: Vec<u8>,
}

/// A stopped cluster with a table of a few hundred pages.
fn table(postgres: &Postgres) -> Table {
    let server = postgres.start("autovacuum = off");
    server.sql("CREATE TABLE t AS SELECT i, repeat('x', 100) FROM generate_series(1, 20000) i; VACUUM t");
    let path = server.sql("SELECT pg_relation_filepath('t')");
    server.stop();
    let file = fs::read(server.data().join(&path)).unwrap();
    assert!(file.len() / PAGE > 100);
    Table { rel: rel(&path), file, server }
}

async fn check_everything_once(fixture: &Fixture, table: &Table) {
    let rel = table.rel;
    let blocks = (table.file.len() / PAGE) as u32;
    for version in [V2, V3] {
        let mut stream = fixture.client.pagestream(version, fixture.tenant, fixture.timeline_id()).await.unwrap();
        let mut ask = async |query| stream.request(&latest(query)).await.unwrap();
        assert_eq!(ask(Query::Exists(rel)).await, Answer::Exists(true));
        assert_eq!(ask(Query::Exists(rel.with_fork(1))).await, Answer::Exists(true));
        assert_eq!(ask(Query::Exists(rel.with_fork(3))).await, Answer::Exists(false));
        assert_eq!(ask(Query::Exists(RelTag { spcnode: 70_000, ..rel })).await, Answer::Exists(false));
        assert_eq!(ask(Query::Nblocks(rel)).await, Answer::Nblocks(blocks));
        let nothing = RelTag { relnode: 3, ..rel };
        assert_eq!(ask(Query::Nblocks(nothing.with_fork(1))).await, Answer::Nblocks(0));
        assert_eq!(ask(Query::Nblocks(nothing.with_fork(2))).await, Answer::Nblocks(0));
        let text = error_text(ask(Query::Nblocks(nothing)).await);
        assert!(text.contains("could not find data for key"), "{text}");
        let text = error_text(ask(Query::GetPage(nothing, 0)).await);
        assert!(text.contains("could not find data for key"), "{text}");
        for relnode in [0, u32::MAX] {
            assert!(matches!(ask(Query::GetPage(RelTag { relnode, ..rel }, 0)).await, Answer::Error(_)));
        }
        for block in [0, 1, blocks - 1] {
            let expected = Bytes::copy_from_slice(&table.file[block as usize * PAGE..][..PAGE]);
            assert!(ask(Query::GetPage(rel, block)).await == Answer::Page(expected), "block {block}");
        }
        for block in [blocks, u32::MAX] {
            assert_eq!(ask(Query::GetPage(rel, block)).await, Answer::Page(vec![0; PAGE].into()));
        }
        let clog = fs::read(table.server.data().join("pg_xact/0000")).unwrap();
        let segment = ask(Query::GetSlruSegment { kind: SlruKind::Clog, segno: 0 }).await;
        assert!(segment == Answer::SlruSegment(clog.into()));
        assert!(matches!(ask(Query::GetSlruSegment { kind: SlruKind::Clog, segno: 9 }).await, Answer::Error(_)));
        let Answer::DbSize(size) = ask(Query::DbSize { dbnode: rel.dbnode }).await else { panic!("no size") };
        assert!(size > table.file.len() as i64 && size % PAGE as i64 == 0);
    }
}

async fn check_lsns(fixture: &Fixture, table: &Table) {
    let mut stream = fixture.client.pagestream(V3, fixture.tenant, fixture.timeline_id()).await.unwrap();
    let last = fixture.timeline.last_record_lsn();
    let page = Query::GetPage(table.rel, 0);
    let mut ask = async |request_lsn, since| stream.request(&at(request_lsn, since, page)).await.unwrap();
    assert!(matches!(ask(last, last).await, Answer::Page(_)));
    assert!(matches!(ask(last + 100, last).await, Answer::Page(_)));
    assert!(error_text(ask(last, last + 1).await).contains("invalid request with request LSN"));
    assert!(error_text(ask(Lsn(0), Lsn(0)).await).contains("invalid LSN(0) in request"));
    assert!(matches!(ask(last - 8, Lsn(1)).await, Answer::Error(_)), "before the import");
    let text = error_text(ask(Lsn::MAX, last + 8).await);
    assert!(text.contains("timed out"), "{text}");
}

/// Sends all requests before reading any answer; some of them fail.
async fn check_pipelining(fixture: &Fixture, table: &Table) {
    let stream = fixture.client.pagestream(V3, fixture.tenant, fixture.timeline_id()).await.unwrap();
    let (mut sender, mut receiver) = stream.split();
    let blocks = (table.file.len() / PAGE) as u32;
    let mut requests = vec![];
    for number in 0..1000u32 {
        let query = match number % 50 {
            7 => Query::Nblocks(table.rel),
            9 => Query::GetPage(RelTag { relnode: 3, ..table.rel }, 0),
            // The same page twice in a batch.
            n => Query::GetPage(table.rel, (number - n % 2) % blocks),
        };
        let mut request = latest(query);
        request.header.reqid = number.into();
        sender.queue(&request);
        requests.push(request);
    }
    let sending = tokio::spawn(async move {
        sender.flush().await.unwrap();
        sender
    });
    for request in &requests {
        match (request.query, receiver.receive_for(request).await.unwrap()) {
            (Query::GetPage(rel, block), Answer::Page(page)) if rel == table.rel => {
                assert!(page == table.file[block as usize * PAGE..][..PAGE], "{request:?}");
            }
            (Query::GetPage(rel, _), Answer::Error(_)) if rel != table.rel => {}
            (Query::Nblocks(_), Answer::Nblocks(found)) => assert_eq!(found, blocks),
            (query, answer) => panic!("{query:?}: {answer:?}"),
        }
    }
    sending.await.unwrap().close().await;
}

fn put(batch: &mut SerializedValueBatch, key: pageserver_api::key::Key, lsn: Lsn, value: Vec<u8>) {
    batch.put(key.to_compact(), lsn, &Value::Image(value.into())).unwrap();
}

/// The table shrinks to one page and grows again while it is being read.
async fn check_sizes_under_ingest(fixture: &Fixture, table: &Table) {
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    let mut stream = fixture.client.pagestream(V3, fixture.tenant, fixture.timeline_id()).await.unwrap();
    let mut history = vec![(fixture.timeline.last_record_lsn(), (table.file.len() / PAGE) as u32)];
    for blocks in [1u32, 5, 2, 9] {
        let lsn = fixture.timeline.last_record_lsn() + 8;
        let mut batch = SerializedValueBatch::default();
        put(&mut batch, rel_size_key(table.rel), lsn, blocks.to_le_bytes().to_vec());
        for block in 0..blocks {
            put(&mut batch, rel_block_key(table.rel, block), lsn, vec![blocks as u8; PAGE]);
        }
        fixture.timeline.put_batch(batch, &ctx).await.unwrap();
        fixture.timeline.finish_write(lsn, lsn - 8);
        history.push((lsn, blocks));
        // Twice, so that cached sizes are used.
        for (lsn, blocks) in history.iter().chain(&history) {
            let mut ask = async |query| stream.request(&at(*lsn, *lsn, query)).await.unwrap();
            assert_eq!(ask(Query::Nblocks(table.rel)).await, Answer::Nblocks(*blocks), "at {lsn}");
            assert_eq!(ask(Query::GetPage(table.rel, *blocks)).await, Answer::Page(vec![0; PAGE].into()));
        }
        let mut ask = async |query| stream.request(&latest(query)).await.unwrap();
        assert_eq!(ask(Query::Nblocks(table.rel)).await, Answer::Nblocks(blocks));
        assert_eq!(ask(Query::GetPage(table.rel, blocks - 1)).await, Answer::Page(vec![blocks as u8; PAGE].into()));
    }
    // A request that needs WAL which has not arrived waits for it.
    let next = fixture.timeline.last_record_lsn() + 8;
    let request = at(Lsn::MAX, next, Query::Nblocks(table.rel));
    let arrive = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        fixture.timeline.finish_write(next, next - 8);
    };
    let (answer, ()) = tokio::join!(stream.request(&request), arrive);
    assert_eq!(answer.unwrap(), Answer::Nblocks(9));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_are_those_of_the_data_files() {
    let table = table(&need!(Postgres::find()));
    let fixture = serve(table.server.data(), PageServiceSettings::default()).await;
    check_everything_once(&fixture, &table).await;
    check_lsns(&fixture, &table).await;
    check_pipelining(&fixture, &table).await;
    check_sizes_under_ingest(&fixture, &table).await;
    fixture.stop().await;
}
