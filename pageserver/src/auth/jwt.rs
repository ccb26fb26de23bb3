//! One token: its three parts, its signature, its claims (RFC 7515, 7519, 8037).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use utils::id::TenantId;

use super::Permission;
use super::keys::PublicKey;

/// Tokens longer than this are not looked at.
const MAX_TOKEN_BYTES: usize = 8192;
/// How far the clocks of issuer and server may be apart.
const LEEWAY: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that must be understood: there are none that we do.
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    scope: String,
    tenant_id: Option<TenantId>,
    /// Seconds since 1970; fractions are allowed.
    exp: Option<f64>,
    nbf: Option<f64>,
}

/// What `token` allows, if one of `keys` has signed it and it is valid at `now`. The error is for the log.
pub(super) fn permission(token: &str, keys: &[PublicKey], now: SystemTime) -> Result<Permission, &'static str> {
    let claims = verified_claims(token, keys)?;
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    if claims.exp.is_some_and(|exp| now >= exp + LEEWAY.as_secs_f64()) {
        return Err("it has expired");
    }
    if claims.nbf.is_some_and(|nbf| now + LEEWAY.as_secs_f64() < nbf) {
        return Err("it is not valid yet");
    }
    match (claims.scope.as_str(), claims.tenant_id) {
        ("pageserverapi", _) => Ok(Permission::All),
        ("tenant", Some(tenant)) => Ok(Permission::Tenant(tenant)),
        ("tenant", None) => Err("its scope is tenant, and it names none"),
        _ => Err("its scope is not one of this service"),
    }
}

fn verified_claims(token: &str, keys: &[PublicKey]) -> Result<Claims, &'static str> {
    if token.len() > MAX_TOKEN_BYTES {
        return Err("it is too long");
    }
    let (signed, signature) = token.rsplit_once('.').ok_or("it has no signature")?;
    let (header, payload) = signed.split_once('.').ok_or("it has no payload")?;
    let header: Header = serde_json::from_slice(&decode(header)?).map_err(|_| "its header is not understood")?;
    if header.alg != "EdDSA" || header.crit.is_some() {
        return Err("it is not signed with EdDSA");
    }
    let signature = decode(signature)?;
    if !keys.iter().any(|key| key.has_signed(signed.as_bytes(), &signature)) {
        return Err("no known key has signed it");
    }
    serde_json::from_slice(&decode(payload)?).map_err(|_| "its claims are not understood")
}

fn decode(part: &str) -> Result<Vec<u8>, &'static str> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| "it is not base64url")
}
