//! Several servers on one bucket, and what each of them is to which tenant. What a server says of itself in the bucket
//! is made of the same types.

use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;
use utoipa::ToSchema;

use crate::http::ids::{LsnText, TenantShardText, TimelineText};

/// What a server is to a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// It owns it.
    Owner,
    /// It follows the owner.
    Standby,
    /// It owned it, until another server took it over.
    Former,
}

/// How far a server is with a timeline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct TimelinePosition {
    /// The timeline.
    #[schema(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
    /// The branch's name, if it is known.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Of an owner, the end of the last record that readers see; of a standby, of what its journal has.
    #[schema(value_type = LsnText)]
    pub(crate) lsn: Lsn,
    /// Up to here the bucket has it; null if that is not known.
    #[schema(value_type = Option<LsnText>)]
    #[serde(default)]
    pub(crate) bucket_lsn: Option<Lsn>,
    /// End of the WAL of the Postgres that writes it, as last heard; null without one.
    #[schema(value_type = Option<LsnText>)]
    #[serde(default)]
    pub(crate) end_lsn: Option<Lsn>,
    /// How many bytes this server is behind that.
    #[serde(default)]
    pub(crate) lag_bytes: Option<u64>,
    /// Why no WAL comes.
    #[serde(default)]
    pub(crate) error: Option<String>,
}

/// What a server says that it is to a tenant, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub(crate) struct TenantRole {
    /// The tenant.
    #[schema(value_type = TenantShardText)]
    pub(crate) tenant: TenantShardId,
    /// What it is.
    pub(crate) role: Role,
    /// The generation in which it holds it, or the owner, if it is a standby.
    #[serde(default)]
    pub(crate) generation: Option<u32>,
    /// What is wrong.
    #[serde(default)]
    pub(crate) error: Option<String>,
    /// Timelines whose WAL comes, those first that are farthest behind; of a standby only if it has a journal.
    #[serde(default)]
    pub(crate) timelines: Vec<TimelinePosition>,
    /// Further ones that are not listed.
    #[serde(default)]
    pub(crate) timelines_left_out: usize,
    /// Bytes of layers that it has on its disk; null of a standby.
    #[serde(default)]
    pub(crate) resident_bytes: Option<u64>,
}

/// What a server says of itself in the bucket.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ServerCard {
    /// Its id.
    pub(crate) server: String,
    /// The name of its machine.
    pub(crate) host: String,
    /// Version of its program.
    #[serde(default)]
    pub(crate) version: String,
    /// Where its console is.
    #[serde(default)]
    pub(crate) url: Option<String>,
    /// Tenants.
    #[serde(default)]
    pub(crate) tenants: Vec<TenantRole>,
}

/// A server's lease, as the bucket has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FleetLease {
    /// How long ago it was renewed, to the second, by the bucket's clock and that of this server.
    pub(crate) renewed_seconds_ago: u64,
    /// After how many milliseconds standbys take over.
    pub(crate) takeover_after_ms: u64,
    /// Whether it was not renewed for longer than that.
    pub(crate) is_overdue: bool,
}

/// A server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FleetServer {
    /// Its id; empty for owners that are not known.
    pub(crate) id: String,
    /// The name of its machine.
    pub(crate) host: String,
    /// Whether it is the one that was asked.
    pub(crate) is_this: bool,
    /// Version of its program; null if it says nothing of itself.
    pub(crate) version: Option<String>,
    /// Where its console is; null if that is not known.
    pub(crate) url: Option<String>,
    /// How long ago it has said what is told here; null if it says nothing, 0 for the server that was asked.
    pub(crate) said_seconds_ago: Option<u64>,
    /// Its lease; null if it has none: without standbys a server needs none.
    pub(crate) lease: Option<FleetLease>,
    /// How many tenants it owns.
    pub(crate) owns: usize,
    /// Of how many tenants it is a standby.
    pub(crate) standby_of: usize,
    /// It is to own nothing more: it was drained.
    pub(crate) drained: bool,
}

/// A server, and what it is to a tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FleetRole {
    /// The server.
    pub(crate) server: String,
    /// What it is.
    pub(crate) role: Role,
    /// What it says itself; null if the server has said nothing.
    pub(crate) said: Option<TenantRole>,
}

/// A tenant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FleetTenant {
    /// Its id.
    #[schema(value_type = TenantShardText)]
    pub(crate) id: TenantShardId,
    /// The newest generation; null without a bucket.
    pub(crate) generation: Option<u32>,
    /// Who has something to do with it, the owner first.
    pub(crate) roles: Vec<FleetRole>,
}

/// All servers on one bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub(crate) struct FleetAnswer {
    /// The servers, the one that was asked first.
    pub(crate) servers: Vec<FleetServer>,
    /// The tenants.
    pub(crate) tenants: Vec<FleetTenant>,
    /// Further tenants that are not listed.
    pub(crate) tenants_left_out: usize,
}
