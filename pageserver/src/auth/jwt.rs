//! Verification of a token: its three parts, signature and claims (RFC 7515, 7519, 8037).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use utils::id::TenantId;

use super::keys::PublicKey;
use super::permission::Permission;

/// Longer tokens are refused unread.
const MAX_TOKEN_BYTES: usize = 8192;
/// Tolerated clock difference between issuer and server.
const LEEWAY: Duration = Duration::from_secs(60);

#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that the receiver must understand; we support none.
    crit: Option<serde_json::Value>,
}

#[derive(Deserialize)]
struct Claims {
    scope: String,
    tenant_id: Option<TenantId>,
    /// Seconds since 1970; fractions are allowed.
    exp: Option<f64>,
    nbf: Option<f64>,
    /// Who it was issued to; whatever is no text counts as nobody.
    #[serde(default)]
    sub: serde_json::Value,
}

/// A valid token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verified {
    /// What it permits.
    pub(super) permission: Permission,
    /// The key that signed it.
    pub(super) key: PublicKey,
    /// When it ceases to be valid; `None` for never.
    pub(super) until: Option<SystemTime>,
    /// Who it was issued to, if it says so.
    pub(super) subject: Option<String>,
}

/// Verifies that `token` was signed by one of `keys` and is valid at `now`. The error is for the log only.
pub(super) fn verify(token: &str, keys: &[PublicKey], now: SystemTime) -> Result<Verified, &'static str> {
    let (claims, key) = verified_claims(token, keys)?;
    let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    if claims.exp.is_some_and(|exp| now >= exp + LEEWAY.as_secs_f64()) {
        return Err("it has expired");
    }
    if claims.nbf.is_some_and(|nbf| now + LEEWAY.as_secs_f64() < nbf) {
        return Err("it is not valid yet");
    }
    // An expiry beyond the clock's range counts as none.
    let until = claims.exp.and_then(|exp| Duration::try_from_secs_f64(exp + LEEWAY.as_secs_f64()).ok());
    let until = until.and_then(|until| UNIX_EPOCH.checked_add(until));
    let subject = claims.sub.as_str().filter(|subject| !subject.is_empty()).map(str::to_owned);
    Ok(Verified { permission: Permission::of(&claims.scope, claims.tenant_id)?, key, until, subject })
}

fn verified_claims(token: &str, keys: &[PublicKey]) -> Result<(Claims, PublicKey), &'static str> {
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
    let key = keys.iter().find(|key| key.has_signed(signed.as_bytes(), &signature));
    let key = key.ok_or("no known key has signed it")?;
    let claims = serde_json::from_slice(&decode(payload)?).map_err(|_| "its claims are not understood")?;
    Ok((claims, *key))
}

fn decode(part: &str) -> Result<Vec<u8>, &'static str> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| "it is not base64url")
}
