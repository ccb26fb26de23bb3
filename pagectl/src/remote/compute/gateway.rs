//! `pagectl gateway`: one Postgres address for all branches of this machine's computes.

mod fleet;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use camino::Utf8PathBuf;
use clap::Args;
use gateway::{Gateway, Settings};
use pageserver::tls::Certificate;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use traces::Destination;

use super::Directory;
use super::wanted::HostArgs;
use crate::output;
use crate::remote::connection::Remote;
use fleet::LocalFleet;

/// What clients name that begin with TLS at once.
const PROTOCOL: &[u8] = b"postgresql";
/// Open files that are no client's.
const OTHER_FILES: u64 = 256;
/// How long a client may take until it has said what it wants.
const LOGIN: Duration = Duration::from_secs(30);

/// Where to listen, and for whom.
#[derive(Debug, Args)]
pub(crate) struct GatewayArgs {
    #[command(flatten)]
    directory: Directory,
    /// Host and port to listen on.
    #[arg(long = "listen", default_value = "127.0.0.1:6432", value_name = "ADDRESS")]
    address: String,
    /// Let everybody in as any role, without a password: whoever can reach the address, which must be on loopback.
    #[arg(long)]
    trust: bool,
    /// Certificate for TLS, in PEM format. It is read again on SIGHUP.
    #[arg(long, requires = "tls_key", value_name = "FILE")]
    tls_cert: Option<Utf8PathBuf>,
    /// The certificate's key, in PEM format.
    #[arg(long, requires = "tls_cert", value_name = "FILE")]
    tls_key: Option<Utf8PathBuf>,
    /// Refuse clients without TLS.
    #[arg(long, requires = "tls_cert")]
    require_tls: bool,
    /// With TLS, a client that connects to NAME.DOMAIN means the branch NAME.
    #[arg(long, requires = "tls_cert", value_name = "DOMAIN")]
    domain: Option<String>,
    /// The branch, or branch@moment, of clients that name none.
    #[arg(long, value_name = "BRANCH")]
    default_branch: Option<String>,
    /// Stop a compute when nobody has been connected for this long; 0s for never.
    #[arg(long, default_value = "5m", value_parser = humantime::parse_duration)]
    idle_timeout: Duration,
    /// How long a client waits for its compute to start, others before it included.
    #[arg(long, default_value = "60s", value_parser = humantime::parse_duration)]
    wake_timeout: Duration,
    /// Connections at once.
    #[arg(long, default_value_t = 2000, value_name = "COUNT")]
    connections_max: usize,
    /// Connections at once to one branch or moment.
    #[arg(long, default_value_t = 500, value_name = "COUNT")]
    branch_connections_max: usize,
    /// Computes that are awake at once, those for moments included.
    #[arg(long, default_value_t = 50, value_name = "COUNT")]
    computes_max: usize,
    /// Computes that are started at once.
    #[arg(long, default_value_t = 4, value_name = "COUNT", value_parser = at_least_one)]
    wakes_max: usize,
    /// Where an OpenTelemetry collector takes traces of sessions that begin, by OTLP over HTTP.
    #[arg(long, value_name = "URL", value_parser = Destination::parse)]
    traces_to: Option<Destination>,
    /// Of so many sessions the beginning of one is traced; 0: of none but slow ones.
    #[arg(long, default_value_t = 1, value_name = "COUNT", requires = "traces_to")]
    traces_one_in: u64,
    /// Sessions that take longer to begin are traced anyway.
    #[arg(long, default_value = "1s", value_parser = humantime::parse_duration, requires = "traces_to")]
    traces_slow: Duration,
    #[command(flatten)]
    host: HostArgs,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "expected 1 or more".to_owned())
}

/// Serves until the process is terminated.
pub(crate) fn run(remote: &Remote<'_>, args: GatewayArgs) -> anyhow::Result<()> {
    let certificate = match (&args.tls_cert, &args.tls_key) {
        (Some(cert), Some(key)) => Some(Arc::new(Certificate::load(cert.clone(), key.clone())?)),
        _ => None,
    };
    let settings = settings(&args, certificate.as_ref())?;
    raise_file_limit(args.connections_max)?;
    let traced = args.traces_to.clone().map(|to| {
        let about = vec![("service.name", "pageserver-gateway".into())];
        traces::Options { to, one_in: args.traces_one_in, slow: args.traces_slow, about }
    });
    let fleet = LocalFleet::new(remote, args.directory.computes(), args.host, args.trust);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        if let Some(options) = traced {
            traces::start(options);
        }
        let listener = TcpListener::bind(&args.address).await;
        let listener = listener.with_context(|| format!("cannot listen on {}", args.address))?;
        let address = listener.local_addr()?;
        if args.trust && !address.ip().is_loopback() {
            bail!("--trust lets everybody in who can reach {address}, and needs an address on loopback");
        }
        // Whom an earlier gateway has left awake; that asks files.
        let gateway = env::spawn::blocking(move || Gateway::new(fleet, settings)).await?;
        output::line(format_args!("listening on {address}"));
        let stop = CancellationToken::new();
        let serving = env::spawn::task("the gateway", gateway.run(listener, stop.clone()));
        until_terminated(certificate.as_deref()).await?;
        stop.cancel();
        Ok(serving.await?)
    })
}

fn settings(args: &GatewayArgs, certificate: Option<&Arc<Certificate>>) -> anyhow::Result<Settings> {
    let tls = certificate.map(|certificate| certificate.server_config(&[PROTOCOL])).transpose()?;
    Ok(Settings {
        tls: tls.map(TlsAcceptor::from),
        require_tls: args.require_tls,
        domain: args.domain.clone(),
        default_branch: args.default_branch.clone(),
        connections_max: args.connections_max,
        branch_connections_max: args.branch_connections_max,
        computes_max: args.computes_max,
        wakes_max: args.wakes_max,
        login_limit: LOGIN,
        wake_limit: args.wake_timeout,
        idle_timeout: Some(args.idle_timeout).filter(|idle| !idle.is_zero()),
    })
}

/// Each session has two sockets, and as many clients again may be waiting for a refusal.
fn raise_file_limit(connections: usize) -> anyhow::Result<()> {
    let wanted = (connections as u64).saturating_mul(3).saturating_add(OTHER_FILES);
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if let Some(hard) = limit.maximum.filter(|hard| *hard < wanted) {
        bail!(
            "{connections} connections need {wanted} open files, and {hard} are allowed: raise that (ulimit -Hn, or \
             LimitNOFILE= of systemd), or say --connections-max {}",
            hard.saturating_sub(OTHER_FILES) / 3
        );
    }
    let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).with_context(|| format!("cannot allow {wanted} open files"))
}

async fn until_terminated(certificate: Option<&Certificate>) -> anyhow::Result<()> {
    let (mut term, mut int, mut hup) =
        (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::hangup())?);
    loop {
        tokio::select! {
            _ = term.recv() => return Ok(()),
            _ = int.recv() => return Ok(()),
            _ = hup.recv() => match certificate.map(Certificate::reload) {
                Some(Err(error)) => tracing::error!("the certificate stays as it was: {error}"),
                Some(Ok(())) => tracing::info!("the certificate is read again"),
                None => {}
            },
        }
    }
}
