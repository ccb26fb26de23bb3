//! The server: a process of its own with one timeline, and beside it an echo of as many bytes.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use bytes::Bytes;
use engine::config::PageServerConf;
use pageserver::auth::Auth;
use pageserver::page_service::{PageService, PageServiceSettings};
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::reltag::RelTag;
use pageserver_client::PageServer;
use pgdata::size_changes::SizeChanges;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

use crate::client::Target;
use crate::import::import;
use crate::zipf::mixed;

pub const REL: RelTag = RelTag { spcnode: 1663, dbnode: 5, relnode: 16384, forknum: 0 };
pub const MODE: &str = "DirectRw";
/// Sizes in bytes of a page request and its answer on the wire.
pub const REQUEST: usize = 51;
pub const ANSWER: usize = 8192 + 51;
const VARIABLE: &str = "BENCH_LOAD_SERVER";
const PAGE: usize = 8192;
/// Bytes of which each page is a part.
const NOISE: usize = 1 << 20;

/// Rebuilt pages that the server keeps.
pub fn cached(pages: u32) -> usize {
    pages as usize / 4
}

/// What the pages hold: each its number, and some noise.
#[derive(Debug)]
pub struct Contents(Bytes);

impl Contents {
    pub fn new() -> Self {
        Self((0..NOISE as u64 / 8).flat_map(|word| mixed(word).to_le_bytes()).collect())
    }

    fn noise(&self, block: u32) -> &[u8] {
        let start = mixed(u64::from(block)) as usize % (NOISE - PAGE);
        self.0.get(start..start + PAGE - 4).unwrap_or_default()
    }

    fn page(&self, block: u32) -> Vec<u8> {
        [block.to_le_bytes().as_slice(), self.noise(block)].concat()
    }

    pub fn is_page(&self, block: u32, found: &[u8]) -> bool {
        found.split_at_checked(4) == Some((block.to_le_bytes().as_slice(), self.noise(block)))
    }
}

/// The process.
pub struct Server {
    child: Child,
    told: Told,
}

/// What it tells on its first line.
#[derive(serde::Serialize, serde::Deserialize)]
struct Told {
    port: u16,
    echo: u16,
    tenant: TenantId,
    timeline: TimelineId,
    last: Lsn,
}

impl Server {
    pub fn start() -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        // It ends when its standard input does.
        let mut child = command.env(VARIABLE, "1").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or_else(|| anyhow::anyhow!("no output"))?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok(Self { told: serde_json::from_str(&line)?, child })
    }

    pub fn target(&self, pages: u32) -> anyhow::Result<Target> {
        let Told { port, echo, tenant, timeline, last } = &self.told;
        let server = PageServer::new(&format!("host=127.0.0.1 port={port} user=bench"), None)?;
        let ids = (*tenant, *timeline);
        let (pid, contents) = (self.child.id(), Contents::new());
        Ok(Target { server, ids, last: *last, echo: *echo, pid, pages, contents })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// Serves until the client is gone, if this process was started as the server.
pub fn serves_here(pages: u32) -> anyhow::Result<bool> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    let engine = virtual_file::io_engine_for_bench();
    virtual_file::init(1024, engine, IoMode::DirectRw, virtual_file::SyncMode::Sync);
    tokio::runtime::Runtime::new()?.block_on(serve(pages))?;
    Ok(true)
}

async fn serve(pages: u32) -> anyhow::Result<()> {
    let dir = camino_tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))?;
    let conf = Box::leak(Box::new(PageServerConf {
        page_cache_size: cached(pages),
        observer: Some(SizeChanges::observer),
        ..PageServerConf::dummy_conf(dir.path().to_owned())
    }));
    let contents = Contents::new();
    let (manager, timeline) = import(conf, &[REL], pages, |_, block| contents.page(block)).await?;
    let (listener, echo) = (TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?);
    let told = Told {
        port: listener.local_addr()?.port(),
        echo: echo.local_addr()?.port(),
        tenant: timeline.tenant_shard_id().tenant_id,
        timeline: timeline.timeline_id(),
        last: timeline.last_record_lsn(),
    };
    let cancel = CancellationToken::new();
    let service = PageService::new(manager.clone(), Auth::trust(), PageServiceSettings::default());
    let serving = tokio::spawn(service.serve(listener, cancel.clone()));
    let echoing = tokio::spawn(echoes(echo));
    println!("{}", serde_json::to_string(&told)?);
    tokio::task::spawn_blocking(|| std::io::stdin().lines().count()).await?;
    echoing.abort();
    cancel.cancel();
    serving.await?;
    drop(timeline);
    manager.shutdown().await;
    Ok(())
}

async fn echoes(listener: TcpListener) -> std::io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(echo(stream));
    }
}

async fn echo(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut request, answer) = ([0; REQUEST], vec![7; ANSWER]);
    loop {
        stream.read_exact(&mut request).await?;
        stream.write_all(&answer).await?;
    }
}
