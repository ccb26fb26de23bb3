//! Life of the process: open what is stored, serve, shut down cleanly.

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use camino::{Utf8Path, Utf8PathBuf};
use engine::tenant::manager::TenantManager;
use journal::Journal;
use pageserver::auth::{Auth, KeyRing};
use pageserver::follow::FollowJobs;
use pageserver::http::{self, AuditOptions, ConsoleOptions, Hosts, HttpOptions, Sources};
use pageserver::page_service::{PageService, PageServiceSettings};
use pageserver::settings::{AuthType, Port, Settings};
use pageserver::tls::Certificate;
use pageserver::walreceiver::WalReceivers;
use remote_storage::RemoteStorage;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use traces::Destination;
use virtual_file::{self, SyncMode};

use crate::signals::{Request, Signals};
use crate::{notify, ports};

/// Directory of the journal in the working directory.
const JOURNAL: &str = "journal";

/// Who changed what, in the working directory.
const AUDIT_LOG: &str = "audit.jsonl";

/// What SIGHUP reloads.
struct Secrets {
    keys: Option<Arc<KeyRing>>,
    certificate: Option<Arc<Certificate>>,
}

/// Everything that runs.
struct Running {
    manager: TenantManager,
    receivers: WalReceivers,
    follow_jobs: FollowJobs,
    tasks: TaskTracker,
    cancel: CancellationToken,
}

/// Serves until a signal arrives, and returns the exit code.
pub(crate) async fn run(settings: Settings, workdir: Utf8PathBuf) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let secrets = Secrets::load(&settings, &workdir)?;
    ports::withdraw(&workdir).await?;
    let (pg, http) = (ports::listen(&settings, Port::Pg).await?, ports::listen(&settings, Port::Http).await?);
    let running = tokio::select! {
        running = start(&settings, &workdir, &secrets, pg, http) => running?,
        // Nothing has been taken in yet, so nothing is lost.
        name = signals.next_stop() => {
            tracing::info!("{name} while starting: stopping");
            return Ok(ExitCode::SUCCESS);
        }
    };
    notify::tell("READY=1");
    let name = wait_for_stop(&mut signals, &secrets).await;
    tracing::info!("{name}: stopping");
    notify::tell("STOPPING=1");
    ports::withdraw(&workdir).await?;
    tokio::select! {
        () = running.stop() => {
            tracing::info!("stopped");
            Ok(ExitCode::SUCCESS)
        }
        () = env::clock::sleep(settings.shutdown_timeout) => {
            tracing::error!("not stopped after {:?} (shutdown_timeout): giving up", settings.shutdown_timeout);
            Ok(ExitCode::from(3))
        }
        name = signals.next_stop() => {
            tracing::error!("second signal, {name}: stopping at once");
            Ok(ExitCode::from(4))
        }
    }
}

async fn start(
    settings: &Settings,
    workdir: &Utf8Path,
    secrets: &Secrets,
    pg: TcpListener,
    http: TcpListener,
) -> anyhow::Result<Running> {
    start_traces(settings)?;
    let engine = settings.virtual_file_io_engine.0.unwrap_or_else(virtual_file::io_engine_for_bench);
    virtual_file::init(settings.max_file_descriptors.get(), engine, settings.virtual_file_io_mode, SyncMode::Sync);
    let mut conf = settings.engine_conf(workdir.to_owned());
    // Permissions of the working directory itself are up to the user. By default the objects are in it, too.
    for ours in [conf.tenants_path(), workdir.join("objects"), workdir.join(JOURNAL)] {
        virtual_file::fs::close_dir(&ours).await?;
    }
    conf.virtual_file_io_engine = Some(engine);
    conf.remote_storage = open_store(settings, workdir).await?;
    let journal = open_journal(settings, workdir).await?;
    conf.server = settings.identity(workdir).await.context("cannot tell who this server is")?;
    // Leaked once per process; it lives as long as the process.
    let conf = Box::leak(Box::new(conf));
    let started = env::clock::now();
    let manager = TenantManager::load(conf).await.with_context(|| format!("cannot open what {workdir} holds"))?;
    let (tenants, broken) = (manager.tenants().len(), manager.broken().len());
    let elapsed = env::clock::now().saturating_duration_since(started);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), %engine, tenants, broken, ?elapsed, "{workdir} is open");
    let running = Running::new(manager, !settings.remote_storage_scratch.as_str().is_empty(), journal);
    running.receivers.recover().await;
    ports::publish(workdir, &pg, &http).await?;
    running.receivers.start_all().await;
    running.serve_pages(settings, secrets, pg)?;
    running.serve_http(settings, workdir, secrets, http)?;
    Ok(running)
}

/// Has traces sent, if they are to be.
fn start_traces(settings: &Settings) -> anyhow::Result<()> {
    if settings.traces_to.is_empty() {
        return Ok(());
    }
    let to = Destination::parse(&settings.traces_to).map_err(anyhow::Error::msg).context("traces_to")?;
    let about = vec![
        ("service.name", "pageserver".into()),
        ("service.version", env!("CARGO_PKG_VERSION").into()),
        ("service.instance.id", settings.server_id.as_str().into()),
        ("process.pid", u64::from(std::process::id()).into()),
    ];
    traces::start(traces::Options { to, one_in: settings.traces_one_in, slow: settings.traces_slow, about });
    tracing::info!(to = settings.traces_to, "traces are sent");
    Ok(())
}

/// Opens the journal, if there is to be one. One that there is no more use for is kept: the next start with a journal
/// finds in it what was durable then.
async fn open_journal(settings: &Settings, workdir: &Utf8Path) -> anyhow::Result<Option<Journal>> {
    let Some(options) = settings.journal().map_err(anyhow::Error::msg)? else { return Ok(None) };
    let dir = workdir.join(JOURNAL);
    virtual_file::fs::create_dir_durably(&dir, workdir).await?;
    let started = env::clock::now();
    let journal = Journal::open(&dir, options).await.with_context(|| format!("cannot open the journal in {dir}"))?;
    let elapsed = env::clock::now().saturating_duration_since(started);
    tracing::info!(segments = journal.stats().segments, ?elapsed, "the journal in {dir} is open");
    Ok(Some(journal))
}

/// Opens the bucket and waits until it responds: without it, it is unknown whether this server has the newest
/// generation of its tenants.
async fn open_store(settings: &Settings, workdir: &Utf8Path) -> anyhow::Result<Option<RemoteStorage>> {
    let store = settings.store(workdir).map_err(anyhow::Error::msg)?;
    let Some(store) = RemoteStorage::open(&store).await.context("cannot open the bucket (remote_storage)")? else {
        return Ok(None);
    };
    let timeout = settings.remote_storage_start_timeout;
    let usable = store.wait_until_usable(timeout).await;
    usable.with_context(|| format!("cannot start without the bucket, waited {timeout:?}"))?;
    Ok(Some(store))
}

impl Running {
    fn new(manager: TenantManager, is_scratch: bool, journal: Option<Journal>) -> Self {
        let receivers = match journal {
            Some(journal) => WalReceivers::with_journal(manager.clone(), journal),
            None if is_scratch => WalReceivers::of_scratch(manager.clone()),
            None => WalReceivers::new(manager.clone()),
        };
        let follow_jobs = FollowJobs::new(manager.clone(), receivers.clone());
        Self { manager, receivers, follow_jobs, tasks: TaskTracker::new(), cancel: CancellationToken::new() }
    }

    fn serve_pages(&self, settings: &Settings, secrets: &Secrets, listener: TcpListener) -> anyhow::Result<()> {
        let certificate = secrets.certificate.as_ref().filter(|_| settings.enable_tls_page_service_api);
        let config = certificate.map(|certificate| certificate.server_config(&[b"postgresql"])).transpose()?;
        let options = PageServiceSettings {
            tls: config.map(TlsAcceptor::from),
            max_connections: settings.max_connections.get(),
            max_batch_size: settings.page_service_max_batch_size.get(),
            lease_length: settings.lsn_lease_length,
            ..PageServiceSettings::default()
        };
        let service = PageService::new(self.manager.clone(), secrets.auth(settings.pg_auth_type), options)
            .with_standby_reads(self.receivers.standby_reads().clone());
        let serving = service.serve(listener, self.cancel.child_token());
        env::spawn::vital("page service", self.tasks.track_future(serving));
        Ok(())
    }

    fn serve_http(
        &self,
        settings: &Settings,
        workdir: &Utf8Path,
        secrets: &Secrets,
        listener: TcpListener,
    ) -> anyhow::Result<()> {
        let certificate = secrets.certificate.as_ref().filter(|_| settings.enable_tls_http_api);
        let options = HttpOptions {
            auth: secrets.auth(settings.http_auth_type),
            keys: secrets.keys.clone(),
            tls: certificate.map(|certificate| certificate.server_config(&[b"http/1.1"])).transpose()?,
            max_connections: settings.http_max_connections.get(),
            request_timeout: settings.http_request_timeout,
            hosts: hosts(settings, &self.manager.conf().server.host),
            public_url: Some(public_url(settings, &self.manager.conf().server.host, listener.local_addr()?)),
            console: settings.console.then_some(ConsoleOptions { computes: settings.console_computes.0 }),
            max_branches: usize::try_from(settings.max_branches).unwrap_or(usize::MAX),
            audit: settings
                .audit_log
                .then(|| AuditOptions { path: workdir.join(AUDIT_LOG), max_bytes: settings.audit_log_max_bytes }),
        };
        let sources = Sources::new(self.follow_jobs.clone(), self.receivers.clone());
        let serving = http::serve(listener, options, self.manager.clone(), sources, self.cancel.child_token());
        env::spawn::vital("management interface", self.tasks.track_future(serving));
        Ok(())
    }

    /// Shuts down in an order that starts nothing which could not be finished.
    async fn stop(self) {
        self.cancel.cancel();
        self.tasks.close();
        self.tasks.wait().await;
        self.follow_jobs.shutdown().await;
        self.receivers.shutdown().await;
        self.manager.shutdown().await;
    }
}

/// The names by which the management interface may be asked.
fn hosts(settings: &Settings, machine: &str) -> Hosts {
    let own = [settings.listen_http_addr.as_str(), machine];
    Hosts::new(own.into_iter().chain(settings.public_url.0.as_deref()).chain(settings.allowed_hosts.split(',')))
}

/// Where people find the console.
fn public_url(settings: &Settings, machine: &str, listens_on: SocketAddr) -> String {
    let scheme = if settings.enable_tls_http_api { "https" } else { "http" };
    settings.public_url.0.clone().unwrap_or_else(|| match listens_on.ip().is_unspecified() {
        true => format!("{scheme}://{machine}:{}/", listens_on.port()),
        false => format!("{scheme}://{listens_on}/"),
    })
}

impl Secrets {
    fn load(settings: &Settings, workdir: &Utf8Path) -> anyhow::Result<Self> {
        let path = |setting: &Utf8Path| Settings::path(workdir, setting);
        let jwt = [settings.pg_auth_type, settings.http_auth_type].contains(&AuthType::Jwt);
        let keys = match jwt {
            true => Some(Arc::new(KeyRing::load(path(&settings.auth_validation_public_key_path))?)),
            false => None,
        };
        let tls = settings.enable_tls_http_api || settings.enable_tls_page_service_api;
        let certificate = match tls {
            true => Some(Arc::new(Certificate::load(path(&settings.ssl_cert_file), path(&settings.ssl_key_file))?)),
            false => None,
        };
        Ok(Self { keys, certificate })
    }

    fn auth(&self, kind: AuthType) -> Auth {
        match (kind, &self.keys) {
            (AuthType::Jwt, Some(keys)) => Auth::jwt(Arc::clone(keys)),
            _ => Auth::trust(),
        }
    }

    fn reload(&self) {
        if let Some(keys) = &self.keys {
            match keys.reload() {
                Ok(count) => tracing::info!("{count} public keys for authentication are in use"),
                Err(error) => tracing::error!("{error}. The keys in use stay"),
            }
        }
        if let Some(certificate) = &self.certificate {
            match certificate.reload() {
                Ok(()) => tracing::info!("the certificate was read again"),
                Err(error) => tracing::error!("{error}. The certificate in use stays"),
            }
        }
    }
}

async fn wait_for_stop(signals: &mut Signals, secrets: &Secrets) -> &'static str {
    loop {
        match signals.next().await {
            Request::Stop(name) => return name,
            Request::Reload => secrets.reload(),
        }
    }
}
