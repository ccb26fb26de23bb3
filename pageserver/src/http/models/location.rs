//! Where a tenant is to be served.

use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::http::ids::TenantShardText;

/// Desired location mode of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) enum LocationMode {
    /// Attach the tenant to this server, taking it over from its current owner.
    AttachedSingle,
    /// Not supported.
    AttachedMulti,
    /// Not supported.
    AttachedStale,
    /// Follow the tenant's owner, and take it over when that is gone.
    Secondary,
    /// Detach the tenant from this server, once everything is in the bucket.
    Detached,
}

/// Settings of a tenant; there are none yet.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantConf {}

/// Desired location of a tenant.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LocationConfig {
    /// AttachedSingle creates the tenant if it does not exist anywhere.
    pub(crate) mode: LocationMode,
    /// Accepted for compatibility and ignored: generations are taken in the bucket.
    #[serde(rename = "generation")]
    pub(crate) _generation: Option<u32>,
    /// Must be null.
    #[schema(value_type = Option<Object>)]
    pub(crate) secondary_conf: Option<serde_json::Value>,
    /// Must be 0.
    #[serde(default)]
    pub(crate) shard_number: u8,
    /// Must be 0, for unsharded.
    #[serde(default)]
    pub(crate) shard_count: u8,
    /// Ignored, since tenants are not sharded.
    #[serde(default, rename = "shard_stripe_size")]
    pub(crate) _shard_stripe_size: u32,
    /// Settings of the tenant.
    #[serde(default, rename = "tenant_conf")]
    pub(crate) _tenant_conf: TenantConf,
}

/// Locations of a tenant's shards.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LocationAnswer {
    /// One location per shard.
    pub(crate) shards: Vec<ShardLocation>,
    /// Always null, since tenants are not sharded.
    #[schema(value_type = Option<u32>)]
    pub(crate) stripe_size: Option<u32>,
}

/// Location of a shard.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShardLocation {
    /// The shard.
    #[schema(value_type = TenantShardText)]
    pub(crate) shard_id: TenantShardId,
    /// Always this server.
    pub(crate) node_id: u64,
}
