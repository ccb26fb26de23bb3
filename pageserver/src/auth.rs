//! Who may do what: bearer tokens for the management interface and the page service.
//!
//! A token is a JWT signed with Ed25519 (`alg` "EdDSA", RFC 8037). Its claim `scope` says what it is good for:
//! `pageserverapi` for everything, `tenant` for the tenant that the claim `tenant_id` names. Tokens of any other scope
//! are meant for other services and refused. Refusals that a client sees are constant texts, and tokens are never
//! logged.

mod jwt;
mod keys;
#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use utils::id::TenantId;

pub use keys::{KeyError, KeyRing};

/// Why a caller is refused. The texts tell nothing about tokens or keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthError {
    /// A token is required, and none was given.
    #[error("authentication required: give a bearer token")]
    Missing,
    /// The token is not good: not a token, signed by nobody we know, expired, or for another service.
    #[error("JWT authentication error")]
    Invalid,
    /// The token is good, but not for this.
    #[error("forbidden: the token's scope does not allow this")]
    Forbidden,
}

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Everything.
    All,
    /// What concerns this tenant alone.
    Tenant(TenantId),
}

impl Permission {
    /// Whether what concerns `tenant` alone may be done.
    ///
    /// # Errors
    /// [`AuthError::Forbidden`] if not.
    pub fn check_tenant(self, tenant: TenantId) -> Result<(), AuthError> {
        match self {
            Permission::All => Ok(()),
            Permission::Tenant(own) if own == tenant => Ok(()),
            Permission::Tenant(_) => Err(AuthError::Forbidden),
        }
    }

    /// Whether what concerns the whole process may be done.
    ///
    /// # Errors
    /// [`AuthError::Forbidden`] if not.
    pub fn check_all(self) -> Result<(), AuthError> {
        match self {
            Permission::All => Ok(()),
            Permission::Tenant(_) => Err(AuthError::Forbidden),
        }
    }
}

/// How callers of one port prove who they are. Cheap to clone; clones see reloaded keys.
#[derive(Clone, Debug)]
pub struct Auth {
    keys: Option<Arc<KeyRing>>,
}

impl Auth {
    /// Everybody may do everything.
    pub fn trust() -> Self {
        Self { keys: None }
    }

    /// Callers need a token that one of `keys` has signed.
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
    /// [`AuthError::Missing`] if a token is required and there is none, [`AuthError::Invalid`] if it is not good.
    pub fn check(&self, token: Option<&str>) -> Result<Permission, AuthError> {
        let Some(keys) = &self.keys else { return Ok(Permission::All) };
        let token = token.ok_or(AuthError::Missing)?;
        jwt::permission(token, &keys.current(), env::clock::system_now()).map_err(|reason| {
            tracing::debug!("a token was refused: {reason}");
            AuthError::Invalid
        })
    }
}
