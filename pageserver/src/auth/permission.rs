//! What a caller may do.

use utils::id::TenantId;

use super::error::AuthError;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// Everything.
    All,
    /// What concerns this tenant alone, and its end.
    TenantAdmin(TenantId),
    /// What concerns this tenant alone, but what would be its end.
    Tenant(TenantId),
}

impl Permission {
    /// What a scope allows. The error is for the log.
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

    /// Whether what concerns the whole process may be done.
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
