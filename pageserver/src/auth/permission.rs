//! What a caller may do.

use utils::id::TenantId;

use super::error::AuthError;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Everything.
    All,
    /// Everything that concerns only this tenant, including its removal.
    TenantAdmin(TenantId),
    /// Everything that concerns only this tenant, except its removal.
    Tenant(TenantId),
}

impl Permission {
    /// What a scope permits. The error is for the log only.
    pub(super) fn of(scope: &str, tenant: Option<TenantId>) -> Result<Self, &'static str> {
        match (scope, tenant) {
            ("pageserverapi", _) => Ok(Permission::All),
            ("tenant", Some(tenant)) => Ok(Permission::Tenant(tenant)),
            ("tenant_admin", Some(tenant)) => Ok(Permission::TenantAdmin(tenant)),
            ("tenant" | "tenant_admin", None) => Err("its scope is a tenant, and it names none"),
            _ => Err("its scope is not one of this service"),
        }
    }

    /// Whether `tenant` may be used: read, written, branched.
    ///
    /// # Errors
    /// [`AuthError::Forbidden`] if not.
    pub fn check_tenant(self, tenant: TenantId) -> Result<(), AuthError> {
        match self {
            Permission::All => Ok(()),
            Permission::Tenant(own) | Permission::TenantAdmin(own) if own == tenant => Ok(()),
            Permission::Tenant(_) | Permission::TenantAdmin(_) => Err(AuthError::Forbidden),
        }
    }

    /// Whether `tenant` may be removed, or moved to or from this server.
    ///
    /// # Errors
    /// [`AuthError::Forbidden`] if not.
    pub fn check_tenant_admin(self, tenant: TenantId) -> Result<(), AuthError> {
        match self {
            Permission::All => Ok(()),
            Permission::TenantAdmin(own) if own == tenant => Ok(()),
            Permission::Tenant(_) | Permission::TenantAdmin(_) => Err(AuthError::Forbidden),
        }
    }

    /// Whether operations on the whole process are allowed.
    ///
    /// # Errors
    /// [`AuthError::Forbidden`] if not.
    pub fn check_all(self) -> Result<(), AuthError> {
        match self {
            Permission::All => Ok(()),
            Permission::Tenant(_) | Permission::TenantAdmin(_) => Err(AuthError::Forbidden),
        }
    }
}
