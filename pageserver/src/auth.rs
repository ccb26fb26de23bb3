//! Access control: bearer tokens for the management interface and the page service.
//!
//! A token is a JWT signed with Ed25519 (`alg` "EdDSA", RFC 8037). Its claim `scope` determines what it permits:
//! `pageserverapi` everything, `tenant` access to the tenant in the claim `tenant_id`, `tenant_admin` also the
//! removal of that tenant. The claim `sub`, if there is one, says who acts. Tokens of any other scope are meant for
//! other services and refused. Refusals shown to clients are constant texts, and tokens are never logged. A permission
//! lasts only as long as its token is valid: [`Grant::ended`] completes when it no longer is.

mod error;
mod grant;
mod jwt;
mod keys;
mod permission;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

pub use error::AuthError;
pub use grant::Grant;
pub use keys::{KeyError, KeyRing};
pub use permission::Permission;

/// How callers of one port authenticate. Cheap to clone; clones see reloaded keys.
#[derive(Clone, Debug)]
pub struct Auth {
    keys: Option<Arc<KeyRing>>,
}

impl Auth {
    /// Everybody may do everything.
    pub fn trust() -> Self {
        Self { keys: None }
    }

    /// Callers need a token signed by one of `keys`.
    pub fn jwt(keys: Arc<KeyRing>) -> Self {
        Self { keys: Some(keys) }
    }

    /// Whether callers need a token.
    pub fn is_required(&self) -> bool {
        self.keys.is_some()
    }

    /// What the bearer of `token` may do.
    ///
    /// # Errors
    /// [`AuthError::Missing`] if a token is required and there is none, [`AuthError::Invalid`] if it is not valid.
    pub fn check(&self, token: Option<&str>) -> Result<Grant, AuthError> {
        let Some(keys) = &self.keys else { return Ok(Grant::trusted()) };
        let token = token.ok_or(AuthError::Missing)?;
        let verified = jwt::verify(token, &keys.current(), env::clock::system_now()).map_err(|reason| {
            tracing::debug!("a token was refused: {reason}");
            AuthError::Invalid
        })?;
        Ok(Grant::by_token(verified, Arc::clone(keys)))
    }
}
