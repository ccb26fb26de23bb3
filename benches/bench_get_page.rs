//! Pages over TCP on loopback: latency with one request in flight, throughput with sixteen.
//!
//! Client and server run in this process and share its cores; the client has a thread and an event loop of its own.
//! Cases: pages as images in the open layer, and images in an image layer, each with rebuilt pages cached; and pages
//! that need ten records applied for every request, because rebuilt pages are not kept. Values of the open layer are
//! in memory. Every page returned is compared with what was stored. For comparison, the limit of the machine: an echo
//! over TCP of as many bytes as a request and its answer. Writes `get_page.json` where `BENCH_RESULTS` says.

#[path = "common/artifact.rs"]
mod artifact;
#[path = "get_page/echo.rs"]
mod echo;
#[path = "common/import.rs"]
mod import;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use hdrhistogram::Histogram;
use pageserver::auth::Auth;
use pageserver::page_service::{PageService, PageServiceSettings};
use pageserver_api::key::rel_block_key;
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::pagestream::{Answer, ProtocolVersion, Query, Request, RequestHeader};
use pageserver_api::record::WalRecord;
use pageserver_api::reltag::RelTag;
use pageserver_api::value::Value;
use pageserver_client::PageServer;
use pgdata::size_changes::SizeChanges;
use postgres_formats::page::PageMut;
use postgres_formats::record::{BlockRef, DecodedRecord, RecordHeader, RelFile, reduce_to_block};
use postgres_formats::rmgr::RmgrId;
use postgres_formats::version::PgVersion;
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use wal_decoder::serialized_batch::SerializedValueBatch;

use artifact::{Setting, Topology, Unit, Validity};
use import::{IMPORT_LSN, import};

/// Pages of each relation.
const PAGES: u32 = 4096;
const RECORDS: u16 = 10;
const DURATION: Duration = Duration::from_secs(5);

const IN_IMAGE_LAYER: RelTag = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 };
const IN_MEMORY: RelTag = RelTag { relnode: 16385, ..IN_IMAGE_LAYER };
const WITH_RECORDS: RelTag = RelTag { relnode: 16386, ..IN_IMAGE_LAYER };

fn context() -> RequestContext {
    RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error)
}

fn empty_page() -> Vec<u8> {
    let mut page = Box::new([0; 8192]);
    PageMut::new(&mut *page).init(0);
    page.to_vec()
}

fn image(block: u32) -> Vec<u8> {
    (0..2048u32).flat_map(|word| (block.wrapping_mul(2_654_435_761) ^ word).to_le_bytes()).collect()
}

/// `XLOG_HEAP_INSERT` of a tuple of about 100 bytes.
fn heap_insert(rel: RelTag, block: u32, offset: u16) -> Bytes {
    let mut tuple = vec![3, 0, 2, 8, 24, 0];
    tuple.extend([block as u8; 100]);
    let mut main_data = offset.to_le_bytes().to_vec();
    main_data.push(0);
    let file = RelFile { spc: rel.spcnode, db: rel.dbnode, rel: rel.relnode };
    let block_ref = BlockRef { id: 0, rel: file, fork: 0, blkno: block, will_init: false, image: None, data: &tuple };
    let record = DecodedRecord {
        version: PgVersion::V15,
        header: RecordHeader { total_len: 0, xid: 700, prev: 1, info: 0, rmid: RmgrId::HEAP.0, crc: 0 },
        blocks: std::iter::once(block_ref).collect(),
        origin: None,
        top_xid: None,
        main_data: &main_data,
    };
    let mut out = Vec::new();
    reduce_to_block(&record, 0, &mut out);
    out.into()
}

async fn make(conf: &'static PageServerConf) -> anyhow::Result<(TenantManager, Timeline)> {
    let page = |rel, block| if rel == WITH_RECORDS { empty_page() } else { image(block) };
    let (manager, timeline) = import(conf, &[IN_IMAGE_LAYER, IN_MEMORY, WITH_RECORDS], PAGES, page).await?;
    write_wal(&timeline).await?;
    Ok((manager, timeline))
}

/// As ingest would: one batch per few hundred records, with the records of a page far from each other.
async fn write_wal(timeline: &Timeline) -> anyhow::Result<()> {
    let mut lsn = IMPORT_LSN;
    let mut values = Vec::new();
    for block in 0..PAGES {
        values.push((rel_block_key(IN_MEMORY, block), Value::Image(image(block ^ 0x5555).into())));
    }
    for block in 0..PAGES {
        values.push((rel_block_key(WITH_RECORDS, block), Value::Image(empty_page().into())));
    }
    for offset in 1..=RECORDS {
        for block in 0..PAGES {
            let record = heap_insert(WITH_RECORDS, block, offset);
            let record = WalRecord::Postgres { will_init: false, block_id: 0, record };
            values.push((rel_block_key(WITH_RECORDS, block), Value::WalRecord(record)));
        }
    }
    for chunk in values.chunks(500) {
        let mut batch = SerializedValueBatch::default();
        for (key, value) in chunk {
            lsn += 128;
            batch.put_key(key, lsn, value)?;
        }
        timeline.put_batch(batch, &context()).await?;
        timeline.finish_write(lsn, lsn - 128);
    }
    Ok(())
}

struct Case {
    name: &'static str,
    rel: RelTag,
}

/// Requests random pages with `depth` requests in flight.
async fn ask(
    server: PageServer,
    (tenant, timeline): (TenantId, TimelineId),
    rel: RelTag,
    expected: &[Bytes],
    last: Lsn,
    depth: usize,
) -> anyhow::Result<(f64, Histogram<u64>, Validity)> {
    let stream = server.pagestream(ProtocolVersion::V3, tenant, timeline).await?;
    let (mut sender, mut receiver) = stream.split();
    let mut times = Histogram::<u64>::new(3)?;
    let mut under_way: VecDeque<(u32, Instant)> = VecDeque::new();
    let mut seed = 88_172_645_463_325_252_u64;
    let (mut pages, mut id, mut began, mut validity) = (0u64, 0, Instant::now(), Validity::of(Unit::Pages));
    // The first second warms up.
    let mut end = began + Duration::from_secs(1);
    let mut measuring = false;
    loop {
        let now = Instant::now();
        if now >= end && measuring {
            break;
        } else if now >= end {
            (measuring, began, end, pages) = (true, now, now + DURATION, 0);
            times.reset();
        }
        while under_way.len() < depth {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let block = (seed % u64::from(PAGES)) as u32;
            id += 1;
            let header = RequestHeader { reqid: id, request_lsn: Lsn::MAX, not_modified_since: last };
            sender.queue(&Request { header, query: Query::GetPage(rel, block) });
            under_way.push_back((block, Instant::now()));
        }
        sender.flush().await?;
        // Refill half a window at a time, as a prefetching client does.
        let keep = if depth == 1 { 0 } else { depth / 2 };
        while under_way.len() > keep {
            let response = receiver.receive().await?;
            let Some((block, asked)) = under_way.pop_front() else { anyhow::bail!("an answer too many") };
            times.record(asked.elapsed().as_nanos() as u64)?;
            match response.answer {
                Answer::Page(page) => validity.compare(page == expected[block as usize]),
                other => anyhow::bail!("no page: {other:?}"),
            }
            pages += 1;
        }
    }
    let rate = pages as f64 / began.elapsed().as_secs_f64();
    sender.close().await;
    Ok((rate, times, validity))
}

fn case_result(name: &str, depth: usize, rate: f64, times: &Histogram<u64>) -> serde_json::Value {
    let us = |quantile| times.value_at_quantile(quantile) as f64 / 1000.0;
    serde_json::json!({
        "case": name, "in_flight": depth, "pages_per_s": rate.round(),
        "p50_us": us(0.5), "p99_us": us(0.99), "p999_us": us(0.999),
    })
}

async fn run() -> anyhow::Result<()> {
    let dir = camino_tempfile::tempdir_in(std::env::var("CARGO_TARGET_TMPDIR").unwrap_or_else(|_| "/tmp".to_owned()))?;
    let cached = std::env::var("BENCH_CACHE").as_deref() != Ok("none");
    let conf = PageServerConf {
        ephemeral_keep_bytes: 128 << 20,
        page_cache_size: 65536,
        observer: Some(SizeChanges::observer),
        ..PageServerConf::dummy_conf(dir.path().to_owned())
    };
    conf.resources.pages.set_keep_rebuilt(cached);
    let conf = Box::leak(Box::new(conf));
    let (manager, timeline) = make(conf).await?;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let port = listener.local_addr()?.port();
    let cancel = CancellationToken::new();
    let service = PageService::new(manager.clone(), Auth::trust(), PageServiceSettings::default());
    let serving = tokio::spawn(service.serve(listener, cancel.clone()));
    let server = PageServer::new(&format!("host=127.0.0.1 port={port} user=bench"), None)?;
    let cases: &[Case] = match cached {
        true => &[
            Case { name: "image in the open layer", rel: IN_MEMORY },
            Case { name: "image in an image layer", rel: IN_IMAGE_LAYER },
        ],
        false => &[Case { name: "10 records to apply", rel: WITH_RECORDS }],
    };
    let ids = (timeline.tenant_shard_id().tenant_id, timeline.timeline_id());
    let last = timeline.last_record_lsn();
    for Case { name, rel } in cases {
        let mut expected = Vec::new();
        for block in 0..PAGES {
            expected.push(timeline.get(rel_block_key(*rel, block), last, &context()).await?);
        }
        for depth in [1, 16] {
            let (server, rel, expected) = (server.clone(), *rel, expected.clone());
            let client = tokio::task::spawn_blocking(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
                runtime.block_on(ask(server, ids, rel, &expected, last, depth))
            });
            let (rate, times, validity) = client.await??;
            let result = case_result(name, depth, rate, &times);
            println!("{}", serde_json::json!({ "result": result, "validity": validity }));
        }
    }
    cancel.cancel();
    serving.await?;
    drop(timeline);
    manager.shutdown().await;
    Ok(())
}

/// What a process of this program reports to the one that started it, one line per case.
#[derive(serde::Deserialize)]
struct Told {
    result: serde_json::Value,
    validity: Validity,
}

/// Runs the cases that need a process of their own, because the caches of a process are configured once.
fn in_own_process(cache: &str) -> anyhow::Result<Vec<Told>> {
    let output = std::process::Command::new(std::env::current_exe()?).env("BENCH_CACHE", cache).output()?;
    anyhow::ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    print!("{text}");
    text.lines().filter(|line| line.starts_with('{')).map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn topology() -> Topology {
    Topology::take(Setting::one_process(
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")),
        virtual_file::io_engine_for_bench(),
        "DirectRw",
    ))
}

fn main() -> anyhow::Result<()> {
    if echo::serves_here()? {
        return Ok(());
    }
    if std::env::var_os("BENCH_CACHE").is_some() {
        let engine = virtual_file::io_engine_for_bench();
        virtual_file::init(1024, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
        return tokio::runtime::Runtime::new()?.block_on(run());
    }
    let (topology, mut validity, mut results) = (topology(), Validity::of(Unit::Pages), Vec::new());
    for cache in ["large", "none"] {
        for told in in_own_process(cache)? {
            validity.add(told.validity);
            results.push(told.result);
        }
    }
    let (rate, times) = echo::measure(DURATION)?;
    results.push(case_result(echo::NAME, 1, rate, &times));
    artifact::write("get_page", &topology, validity, results.into())?;
    Ok(())
}
