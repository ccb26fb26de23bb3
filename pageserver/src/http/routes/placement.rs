//! Where tenants are to be: orders to hand them over, and servers that are to own nothing (decision 0037).

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::app::{App, to_the_end};
use crate::http::error::{ApiError, ErrorBody};
use crate::http::extract::{At, Body, ServerPath, TenantPath};
use crate::settings::server_id_defect;
use engine::placement::{Order, Stage, What, Word};
use engine::tenant::manager::OrderStatus;

/// An order holds no longer than this.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);

/// An order about a tenant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveBody {
    /// The id of the server that is to have it.
    to: String,
    /// Only as a standby.
    #[serde(default)]
    standby: bool,
    /// The order is given up after this time, such as `60s`.
    #[serde(default = "a_minute")]
    timeout: String,
}

fn a_minute() -> String {
    "60s".to_owned()
}

/// How far an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum MoveState {
    /// The server that is to have the tenant has not seen the order yet.
    Ordered,
    /// It has become a standby, and gets ready.
    Following,
    /// It waits for the owner, which uploads what the bucket does not have.
    Ready,
    /// The owner has given the tenant up.
    Given,
    /// It is done.
    Done,
    /// It was given up: the owner goes on.
    Failed,
}

/// An order, and how far it is.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct MoveAnswer {
    /// Which order it is.
    order: String,
    /// The server that is to have the tenant.
    to: String,
    /// The one that owned it when that was ordered.
    from: String,
    /// Only as a standby.
    standby: bool,
    /// How far it is.
    state: MoveState,
    /// Why it was given up.
    error: Option<String>,
    /// Who owns the tenant now.
    owner: String,
    /// The newest generation.
    generation: u32,
}

/// How far it is. A generation after that of the order says who has it, whatever anybody says.
fn state(status: &OrderStatus) -> (MoveState, Option<String>) {
    let OrderStatus { order, generation, owner, target, giver } = status;
    let words: Vec<&Word> = target.iter().chain(giver).collect();
    let has = |stage| words.iter().any(|word| word.stage == stage);
    let failed = words.iter().find(|word| word.stage == Stage::Failed);
    let is_followed = order.what == What::Follow && has(Stage::Following);
    if is_followed || order.what == What::Move && *generation > order.generation && *owner == order.to {
        return (MoveState::Done, None);
    }
    if let Some(word) = failed {
        return (MoveState::Failed, word.error.clone());
    }
    if *generation > order.generation {
        return (MoveState::Failed, Some(format!("the tenant has another owner since, {owner}")));
    }
    let state = match () {
        () if has(Stage::Given) => MoveState::Given,
        () if has(Stage::Ready) => MoveState::Ready,
        () if has(Stage::Following) => MoveState::Following,
        () => MoveState::Ordered,
    };
    if order.left().is_some() || state == MoveState::Given {
        return (state, None);
    }
    let late = match state {
        MoveState::Ordered => format!(
            "server {} has not answered in time. If it is new here, or has nothing to do with other servers yet, ask \
             it itself: name it with --server as well",
            order.to
        ),
        MoveState::Following => "the server that is to have it was not ready in time".to_owned(),
        _ => "its owner has not handed it over in time".to_owned(),
    };
    (MoveState::Failed, Some(late))
}

fn answer(status: OrderStatus) -> MoveAnswer {
    let (state, error) = state(&status);
    let OrderStatus { order, generation, owner, .. } = status;
    let Order { nonce, what, to, from, .. } = order;
    MoveAnswer { order: nonce, to, from, standby: what == What::Follow, state, error, owner, generation }
}

fn check_id(server: &str) -> Result<(), ApiError> {
    let is_bad = server.is_empty() || server_id_defect(server).is_some();
    if is_bad { Err(ApiError::bad_request(format!("{server:?} is no id of a server"))) } else { Ok(()) }
}

/// Orders that another server is to own a tenant: that becomes a standby, and gets ready; then the owner uploads
/// everything, and hands the tenant over. Computes that know both servers notice a pause. An order that is not done in
/// time is given up, and the owner goes on. Any server on the bucket may be asked.
#[utoipa::path(put, path = "/v1/tenant/{tenant_shard_id}/move", tag = "tenants", params(TenantPath),
    request_body = MoveBody,
    responses((status = 200, body = MoveAnswer), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The server owns it, or somebody else gives an order"),
        (status = 412, body = ErrorBody, description = "The server is drained, or there is no bucket, or no leases")))]
pub(crate) async fn order(
    State(app): State<App>,
    At(path): At<TenantPath>,
    Body(wanted): Body<MoveBody>,
) -> Result<Json<MoveAnswer>, ApiError> {
    let id = path.tenant_shard_id;
    check_id(&wanted.to)?;
    let timeout = humantime::parse_duration(&wanted.timeout)
        .map_err(|error| ApiError::bad_request(format!("timeout {:?}: {error}", wanted.timeout)))?;
    if timeout > TIMEOUT_MAX || timeout < Duration::from_secs(1) {
        return Err(ApiError::bad_request(format!("timeout {:?}: between 1s and {TIMEOUT_MAX:?}", wanted.timeout)));
    }
    let what = if wanted.standby { What::Follow } else { What::Move };
    to_the_end("order about a tenant", async move {
        let order = app.manager.order(id, what, &wanted.to, timeout).await?;
        let (generation, owner) = (order.generation, order.from.clone());
        Ok(Json(answer(OrderStatus { order, generation, owner, target: None, giver: None })))
    })
    .await
}

/// Shows how far the newest order about a tenant is. Any server on the bucket may be asked; one that is asked looks at
/// once whether it has to do something.
#[utoipa::path(get, path = "/v1/tenant/{tenant_shard_id}/move", tag = "tenants", params(TenantPath),
    responses((status = 200, body = MoveAnswer), (status = 404, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "There is no bucket, or no leases")))]
pub(crate) async fn status(State(app): State<App>, At(path): At<TenantPath>) -> Result<Json<MoveAnswer>, ApiError> {
    let id = path.tenant_shard_id;
    let found = app.manager.order_status(id).await?;
    let none = || ApiError::not_found(format!("there was no order about tenant {id}"));
    let answer = found.map(answer).ok_or_else(none)?;
    if answer.state == MoveState::Done {
        // Whoever asks for the fleet next sees it.
        *app.fleet_seen.lock().await = None;
    }
    Ok(Json(answer))
}

/// What a server is to own.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct DrainAnswer {
    /// The server.
    server: String,
    /// It is to own nothing more.
    drained: bool,
}

/// Says in the bucket that a server is to own nothing more: no tenant is handed over to it, and it takes none over by
/// itself, also after restarts. What it owns stays there until it is moved. Any server on the bucket may be asked.
#[utoipa::path(put, path = "/v1/fleet/server/{server_id}/drained", tag = "server", params(ServerPath),
    responses((status = 200, body = DrainAnswer),
        (status = 412, body = ErrorBody, description = "There is no bucket, or no leases")))]
pub(crate) async fn drain(State(app): State<App>, At(path): At<ServerPath>) -> Result<Json<DrainAnswer>, ApiError> {
    set(app, path.server_id, true).await
}

/// Takes that back.
#[utoipa::path(delete, path = "/v1/fleet/server/{server_id}/drained", tag = "server", params(ServerPath),
    responses((status = 200, body = DrainAnswer),
        (status = 412, body = ErrorBody, description = "There is no bucket, or no leases")))]
pub(crate) async fn fill(State(app): State<App>, At(path): At<ServerPath>) -> Result<Json<DrainAnswer>, ApiError> {
    set(app, path.server_id, false).await
}

async fn set(app: App, server: String, drained: bool) -> Result<Json<DrainAnswer>, ApiError> {
    check_id(&server)?;
    app.manager.set_drained(&server, drained).await?;
    // Whoever asks next sees it.
    *app.fleet_seen.lock().await = None;
    Ok(Json(DrainAnswer { server, drained }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(stage: Stage) -> Option<Word> {
        Some(Word { nonce: "n".into(), stage, error: (stage == Stage::Failed).then(|| "why".to_owned()) })
    }

    fn status(until: u64, generation: u32, owner: &str, target: Option<Word>, giver: Option<Word>) -> OrderStatus {
        let (nonce, what, to, from) = ("n".to_owned(), What::Move, "b".to_owned(), "a".to_owned());
        let order = Order { nonce, what, to, from, generation: 3, until };
        OrderStatus { order, generation, owner: owner.to_owned(), target, giver }
    }

    #[test]
    fn who_has_the_next_generation_says_how_an_order_ended() {
        let of = |one: OrderStatus| state(&one).0;
        assert_eq!(of(status(u64::MAX, 3, "a", None, None)), MoveState::Ordered);
        assert_eq!(of(status(u64::MAX, 3, "a", word(Stage::Ready), None)), MoveState::Ready);
        assert_eq!(of(status(u64::MAX, 3, "a", word(Stage::Ready), word(Stage::Given))), MoveState::Given);
        assert_eq!(of(status(0, 3, "a", word(Stage::Ready), word(Stage::Given))), MoveState::Given, "it ends soon");
        assert_eq!(of(status(0, 4, "b", word(Stage::Failed), word(Stage::Failed))), MoveState::Done);
        assert_eq!(of(status(u64::MAX, 4, "a", word(Stage::Ready), word(Stage::Given))), MoveState::Failed);
        assert_eq!(of(status(0, 3, "a", word(Stage::Following), None)), MoveState::Failed);
        let (failed, error) = state(&status(u64::MAX, 3, "a", word(Stage::Failed), None));
        assert_eq!((failed, error.as_deref()), (MoveState::Failed, Some("why")));
        let (_, error) = state(&status(0, 3, "a", None, None));
        assert!(error.unwrap().contains("--server"));
    }

    #[test]
    fn what_is_no_id_is_refused() {
        assert!(check_id("ps-1").is_ok());
        for bad in ["", "a/b", "a\n", &"x".repeat(300)] {
            assert!(check_id(bad).is_err(), "{bad:?}");
        }
    }
}
