//! Access control: what each operation requires, and what a caller's token grants.

use axum::extract::RawPathParams;
use axum::extract::rejection::RawPathParamsRejection;
use axum::http::{HeaderMap, Method, header};
use pageserver_api::shard::TenantShardId;
use tokio::sync::watch;
use utils::id::TenantId;

use super::app::App;
use super::error::ApiError;
use crate::auth::{AuthError, Grant};
use metrics::METRICS;

/// Paths that need no token.
const OPEN: [&str; 5] = ["/v1/status", "/v1/doc", "/v1/openapi.json", "/swagger.yml", "/metrics"];
/// Operations that delete a tenant, or make this server let go of it.
const TENANT_ADMIN: [(Method, &str); 2] =
    [(Method::DELETE, "/v1/tenant/{tenant_shard_id}"), (Method::PUT, "/v1/tenant/{tenant_shard_id}/location_config")];
/// Operations below a tenant that are not for those who use it.
const OPERATOR: [(Method, &str); 3] = [
    (Method::PUT, "/v1/tenant/{tenant_shard_id}/quota"),
    (Method::PUT, "/v1/tenant/{tenant_shard_id}/move"),
    (Method::GET, "/v1/tenant/{tenant_shard_id}/move"),
];
/// The path parameter that names a tenant.
const TENANT: &str = "tenant_shard_id";

/// The permission that an operation requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// None.
    Nothing,
    /// Access to the tenant in the path.
    Tenant,
    /// Permission to delete that tenant.
    TenantAdmin,
    /// Everything.
    All,
}

impl Needs {
    /// Operations below a tenant are open to that tenant's tokens; all others only to tokens for everything.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        if OPEN.contains(&path) {
            Needs::Nothing
        } else if TENANT_ADMIN.iter().any(|one| one == &(method.clone(), path)) {
            Needs::TenantAdmin
        } else if OPERATOR.iter().any(|one| one == &(method.clone(), path)) {
            Needs::All
        } else if path.split('/').any(|part| part.strip_prefix('{').and_then(|it| it.strip_suffix('}')) == Some(TENANT))
        {
            Needs::Tenant
        } else {
            Needs::All
        }
    }

    /// The scopes of which a token must have one.
    pub(crate) fn scopes(self) -> &'static [&'static str] {
        match self {
            Needs::Nothing => &[],
            Needs::Tenant => &["tenant", "tenant_admin", "pageserverapi"],
            Needs::TenantAdmin => &["tenant_admin", "pageserverapi"],
            Needs::All => &["pageserverapi"],
        }
    }
}

/// The caller that a connection acts for: the last one that was authorized on it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller(watch::Sender<Option<Grant>>);

impl Caller {
    /// Sets the current caller.
    pub(crate) fn is(&self, grant: Grant) {
        self.0.send_replace(Some(grant));
    }

    /// Completes when the current caller's token is no longer valid.
    pub(crate) async fn ended(&self) {
        let mut callers = self.0.subscribe();
        loop {
            let grant = callers.borrow_and_update().clone();
            let ended = async {
                match &grant {
                    Some(grant) => grant.ended().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = ended => return,
                // Never an error: the sender is owned by `self`.
                _ = callers.changed() => {}
            }
        }
    }
}

/// Checks the caller's permission and returns its grant; `None` if the operation is open to everybody.
pub(crate) fn permitted(
    app: &App,
    needed: Needs,
    headers: &HeaderMap,
    parameters: Result<RawPathParams, RawPathParamsRejection>,
) -> Result<Option<Grant>, ApiError> {
    if needed == Needs::Nothing {
        return Ok(None);
    }
    let parameters = parameters.map_err(|rejection| ApiError::bad_request(rejection.body_text()))?;
    let refused = |error: AuthError| {
        METRICS.auth_refused.inc();
        ApiError::from(error)
    };
    let grant = app.auth.check(bearer(headers).map_err(refused)?).map_err(refused)?;
    let tenant = || -> Result<TenantId, ApiError> {
        let found = parameters.iter().find(|(name, _)| *name == TENANT).map_or("", |(_, value)| value);
        let tenant: TenantShardId = found.parse().map_err(|error| ApiError::bad_request(format!("{error}")))?;
        Ok(tenant.tenant_id)
    };
    let permission = grant.permission();
    let allowed = match needed {
        Needs::Nothing => Ok(()),
        Needs::Tenant => permission.check_tenant(tenant()?),
        Needs::TenantAdmin => permission.check_tenant_admin(tenant()?),
        Needs::All => permission.check_all(),
    };
    allowed.map_err(refused)?;
    Ok(Some(grant))
}

/// The bearer token from the `Authorization` header, if there is one.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, AuthError> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return if headers.contains_key(header::AUTHORIZATION) { Err(AuthError::Invalid) } else { Ok(None) };
    };
    let (scheme, token) = value.to_str().ok().and_then(|text| text.split_once(' ')).ok_or(AuthError::Invalid)?;
    if scheme.eq_ignore_ascii_case("bearer") { Ok(Some(token.trim())) } else { Err(AuthError::Invalid) }
}
