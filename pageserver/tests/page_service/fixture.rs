//! A Postgres cluster, stopped and imported, and a page service over it.

use camino::Utf8Path;
use camino_tempfile::Utf8TempDir;
use datadir::DataDir;
use engine::config::PageServerConf;
use engine::context::{DownloadBehavior, RequestContext};
use engine::task_mgr::TaskKind;
use engine::tenant::manager::TenantManager;
use engine::tenant::timeline::Timeline;
use pageserver::auth::Auth;
use pageserver::page_service::{PageService, PageServiceSettings};
use pageserver_api::pagestream::{Answer, Query, Request, RequestHeader};
use pageserver_api::reltag::RelTag;
use pageserver_api::shard::TenantShardId;
use pageserver_client::PageServer;
use pgdata::size_changes::SizeChanges;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;

/// The page service and what it serves.
pub struct Fixture {
    _workdir: Utf8TempDir,
    pub manager: TenantManager,
    pub tenant: TenantId,
    pub timeline: Timeline,
    pub address: String,
    pub client: PageServer,
    pub cancel: CancellationToken,
    pub served: JoinHandle<()>,
}

impl Fixture {
    pub fn timeline_id(&self) -> TimelineId {
        self.timeline.timeline_id()
    }

    pub async fn stop(self) {
        self.cancel.cancel();
        self.served.await.unwrap();
        self.manager.shutdown().await;
    }
}

/// Imports the stopped cluster in `data` and serves it.
pub async fn serve(data: &Utf8Path, settings: PageServiceSettings) -> Fixture {
    let workdir = camino_tempfile::Builder::new().prefix("page-service-").tempdir_in("/tmp").unwrap();
    let mut conf = PageServerConf::dummy_conf(workdir.path().to_owned());
    conf.observer = Some(SizeChanges::observer);
    conf.wait_lsn_timeout = std::time::Duration::from_millis(500);
    let conf: &'static PageServerConf = Box::leak(Box::new(conf));
    let manager = TenantManager::load_idle(conf).await.unwrap();
    let (tenant, timeline_id) = (TenantId::generate(), TimelineId::generate());
    let source = DataDir::open(data).unwrap();
    let ctx = RequestContext::new(TaskKind::UnitTest, DownloadBehavior::Error);
    let shard = TenantShardId::unsharded(tenant);
    let imported = pgdata::import::import(conf, shard, timeline_id, &source, &mut |_| {}, &ctx).await;
    let (timeline, _) = imported.unwrap();
    manager.add(timeline.clone()).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("host=127.0.0.1 port={} user=compute", listener.local_addr().unwrap().port());
    let cancel = CancellationToken::new();
    let service = PageService::new(manager.clone(), Auth::trust(), settings);
    let served = tokio::spawn(service.serve(listener, cancel.clone()));
    let client = PageServer::new(&address, None).unwrap();
    Fixture { _workdir: workdir, manager, tenant, timeline, address, client, cancel, served }
}

/// A request for the latest version.
pub fn latest(query: Query) -> Request {
    at(Lsn::MAX, Lsn(1), query)
}

pub fn at(request_lsn: Lsn, not_modified_since: Lsn, query: Query) -> Request {
    Request { header: RequestHeader { reqid: 7, request_lsn, not_modified_since }, query }
}

/// The relation of a fork's file, from `pg_relation_filepath`.
pub fn rel(path: &str) -> RelTag {
    let mut numbers = path.split('/').skip(1).map(|part| part.parse().unwrap());
    let (dbnode, relnode) = (numbers.next().unwrap(), numbers.next().unwrap());
    RelTag { spcnode: 1663, dbnode, relnode, forknum: 0 }
}

pub fn error_text(answer: Answer<bytes::Bytes>) -> String {
    match answer {
        Answer::Error(text) => String::from_utf8(text.to_vec()).unwrap(),
        other => panic!("no error: {other:?}"),
    }
}
