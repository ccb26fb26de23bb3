//! Tokens: which clients are let in, and whose timelines they may see.

use std::sync::Arc;

use camino_tempfile::tempdir;
use pageserver_api::pagestream::ProtocolVersion;
use pageserver_client::{ClientError, PageServer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use utils::id::{TenantId, TimelineId};

use super::{PageService, PageServiceSettings};
use crate::auth::tests::Signer;
use crate::auth::{Auth, KeyRing};
use engine::config::PageServerConf;
use engine::tenant::manager::TenantManager;

/// The error that a client with `token` gets when it asks for a nonexistent timeline of `tenant`.
async fn ask(port: u16, token: Option<&str>, tenant: TenantId) -> String {
    let server = PageServer::new(&format!("host=127.0.0.1 port={port} user=x"), token).unwrap();
    let refused = server.pagestream(ProtocolVersion::V3, tenant, TimelineId::generate()).await.err().unwrap();
    assert!(!matches!(refused, ClientError::Io(_) | ClientError::Closed), "{refused:?}");
    refused.to_string()
}

#[tokio::test]
async fn a_token_is_good_for_its_tenant() {
    let dir = tempdir().unwrap();
    let signer = Signer::new();
    let pem = dir.path().join("key.pem");
    std::fs::write(&pem, signer.pem()).unwrap();
    let conf = Box::leak(Box::new(PageServerConf::dummy_conf(dir.path().join("work"))));
    std::fs::create_dir(&conf.workdir).unwrap();
    let manager = TenantManager::load_idle(conf).await.unwrap();
    let auth = Auth::jwt(Arc::new(KeyRing::load(pem).unwrap()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let cancel = CancellationToken::new();
    let service = PageService::new(manager.clone(), auth, PageServiceSettings::default());
    let served = tokio::spawn(service.serve(listener, cancel.clone()));

    let (own, other) = (TenantId::generate(), TenantId::generate());
    let tenant_token = signer.claims(&json!({"scope": "tenant", "tenant_id": own.to_string()}));
    let all_token = signer.claims(&json!({"scope": "pageserverapi"}));
    assert!(ask(port, Some(&tenant_token), own).await.contains("not found"));
    assert!(ask(port, Some(&tenant_token), other).await.contains("forbidden"));
    assert!(ask(port, Some(&all_token), other).await.contains("not found"));
    let forged = Signer::new().claims(&json!({"scope": "pageserverapi"}));
    assert!(ask(port, Some(&forged), own).await.contains("JWT authentication error"));
    assert!(ask(port, None, own).await.contains("password"));
    cancel.cancel();
    served.await.unwrap();
    manager.shutdown().await;
}
