//! `pagectl compute serve`: the compute commands over HTTP, as JSON. Whoever has the token may start programs here,
//! so nothing is served without one.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Args;
use compute::lifecycle::{self, Computes};
use serde::Deserialize;
use serde_json::{Value, json};

use super::control::{Opening, Registry};
use super::init::{self, Here};
use super::promote::{self, PromoteArgs};
use super::replica;
use super::set::{self, SetArgs};
use super::show;
use super::start::{self, By};
use super::stop::stopped;
use super::wanted::{HostArgs, Wanted};
use crate::args::Common;
use crate::output;
use crate::remote::client::Client;
use crate::remote::connection::Remote;

/// Time limit for a compute to stop.
const STOP: Duration = Duration::from_secs(120);
/// Default number of log lines.
const LINES: usize = 50;
/// Shorter tokens can be guessed.
const TOKEN_MIN: usize = 16;

/// Where to listen.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Host and port to listen on.
    #[arg(long = "listen-http", default_value = "127.0.0.1:9899", value_name = "ADDRESS")]
    address: String,
    /// The bearer token that callers must present.
    #[arg(long, env = "PAGECTL_SERVE_TOKEN", hide_env_values = true)]
    serve_token: String,
    #[command(flatten)]
    host: HostArgs,
}

/// Shared state of the handlers.
struct Served {
    computes: Computes,
    host: HostArgs,
    token: String,
    client: Client,
    common: Common,
    page_token: Option<String>,
}

impl Served {
    fn remote(&self) -> Remote<'_> {
        Remote { client: self.client.clone(), common: &self.common, token: self.page_token.clone() }
    }

    fn start(&self, wanted: &Wanted) -> anyhow::Result<Value> {
        let remote = self.remote();
        let here = Here { remote: &remote, computes: &self.computes, host: &self.host };
        let prepare = |branch: &Value| init::ready(here, branch, &init::Wish::default());
        let by = By { opening: Opening::Use, prepare: &prepare };
        start::start(&remote, &self.computes, wanted, &self.host, &by)
    }
}

type Refused = (StatusCode, Json<Value>);
type Answer = Result<Json<Value>, Refused>;

/// Serves until the process is terminated.
pub(super) fn run(remote: &Remote<'_>, computes: Computes, args: ServeArgs) -> anyhow::Result<()> {
    let ServeArgs { address, serve_token: token, host } = args;
    if token.len() < TOKEN_MIN {
        bail!("--serve-token must have {TOKEN_MIN} characters at least: who has it may start programs here");
    }
    let (client, common, page_token) = (remote.client.clone(), remote.common.clone(), remote.token.clone());
    let router = router(Arc::new(Served { computes, host, token, client, common, page_token }));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&address).await;
        let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
        output::line(format_args!("listening on http://{}", listener.local_addr()?));
        Ok(axum::serve(listener, router).await?)
    })
}

fn router(served: Arc<Served>) -> Router {
    Router::new()
        .route("/v1/compute", get(list).post(make))
        .route("/v1/compute/{name}", get(one).patch(change).delete(destroy))
        .route("/v1/compute/{name}/start", post(again))
        .route("/v1/compute/{name}/stop", post(stop))
        .route("/v1/compute/{name}/promote", post(take_place))
        .route("/v1/compute/{name}/logs", get(logs))
        .layer(from_fn_with_state(Arc::clone(&served), check))
        .with_state(served)
}

async fn check(State(served): State<Arc<Served>>, request: Request, next: Next) -> Response {
    let given = request.headers().get(header::AUTHORIZATION).map(|value| value.as_bytes().to_vec());
    let wanted = format!("Bearer {}", served.token);
    if given.is_some_and(|given| is_same(&given, wanted.as_bytes())) {
        return next.run(request).await;
    }
    refused(StatusCode::UNAUTHORIZED, "the bearer token is missing or wrong").into_response()
}

/// Compares in constant time.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |sum, (one, other)| sum | (one ^ other)) == 0
}

fn refused(status: StatusCode, msg: impl std::fmt::Display) -> Refused {
    (status, Json(json!({ "msg": msg.to_string() })))
}

/// Runs work that blocks on Postgres and the page server.
async fn work(served: Arc<Served>, work: impl FnOnce(&Served) -> anyhow::Result<Value> + Send + 'static) -> Answer {
    match env::spawn::blocking(move || work(&served)).await {
        Ok(Ok(value)) => Ok(Json(value)),
        Ok(Err(error)) => Err(refused(StatusCode::CONFLICT, format_args!("{error:#}"))),
        Err(error) => Err(refused(StatusCode::INTERNAL_SERVER_ERROR, error)),
    }
}

async fn list(State(served): State<Arc<Served>>) -> Answer {
    work(served, |served| Ok(json!({ "computes": show::all(&served.remote(), &served.computes)? }))).await
}

async fn one(State(served): State<Arc<Served>>, Path(name): Path<String>) -> Answer {
    let missing = refused(StatusCode::NOT_FOUND, format_args!("there is no compute {name}"));
    let Json(all) = work(served, |served| Ok(Value::Array(show::all(&served.remote(), &served.computes)?))).await?;
    let found = all.as_array().and_then(|all| all.iter().find(|one| one["name"] == *name));
    found.cloned().map(Json).ok_or(missing)
}

fn body<T>(body: Result<Json<T>, JsonRejection>) -> Result<T, Refused> {
    body.map(|Json(wanted)| wanted).map_err(|rejection| refused(StatusCode::BAD_REQUEST, rejection.body_text()))
}

async fn make(State(served): State<Arc<Served>>, wanted: Result<Json<Wanted>, JsonRejection>) -> Answer {
    let wanted = body(wanted)?;
    work(served, move |served| served.start(&wanted)).await
}

/// Changes the options of a compute.
async fn change(
    State(served): State<Arc<Served>>,
    Path(name): Path<String>,
    args: Result<Json<SetArgs>, JsonRejection>,
) -> Answer {
    let args = body(args)?;
    work(served, move |served| set::set(&served.remote(), &served.computes, &name, &args)).await
}

/// Starts a stopped compute.
async fn again(
    State(served): State<Arc<Served>>,
    Path(name): Path<String>,
    wanted: Result<Json<Wanted>, JsonRejection>,
) -> Answer {
    let mut wanted = body(wanted)?;
    wanted.name = Some(name.clone());
    work(served, move |served| {
        if !served.computes.layout(&name)?.config().exists() {
            bail!("there is no compute {name}");
        }
        served.start(&wanted)
    })
    .await
}

async fn stop(State(served): State<Arc<Served>>, Path(name): Path<String>) -> Answer {
    let stop = move |served: &Served| stopped(&served.remote(), &served.computes, &name, STOP);
    work(served, move |served| Ok(json!({ "end_lsn": stop(served)? }))).await
}

/// Makes a replica the primary.
async fn take_place(State(served): State<Arc<Served>>, Path(name): Path<String>) -> Answer {
    work(served, move |served| {
        let args = PromoteArgs { name, stop_within: replica::STOP, port: None, host: served.host.clone() };
        promote::promote(&served.remote(), &served.computes, &args)
    })
    .await
}

#[derive(Deserialize)]
struct Force {
    #[serde(default)]
    force: bool,
}

async fn destroy(
    State(served): State<Arc<Served>>,
    Path(name): Path<String>,
    Query(Force { force }): Query<Force>,
) -> Answer {
    work(served, move |served| {
        lifecycle::destroy(&served.computes.layout(&name)?, force, &Registry::of(&served.remote()))?;
        Ok(json!({ "name": name }))
    })
    .await
}

#[derive(Deserialize)]
struct Lines {
    lines: Option<usize>,
}

async fn logs(
    State(served): State<Arc<Served>>,
    Path(name): Path<String>,
    Query(Lines { lines }): Query<Lines>,
) -> Answer {
    let logs = move |served: &Served| show::logs(&served.computes, &name, lines.unwrap_or(LINES));
    work(served, move |served| Ok(json!({ "log": logs(served)? }))).await
}
