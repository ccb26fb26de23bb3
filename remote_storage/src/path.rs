//! The paths of objects. `docs/formats.md` describes the layout.
//!
//! ```text
//! conditional-write-probe
//! leases/<server>/lease
//! leases/<server>/wanted
//! leases/<server>/claims/<number of the claim, 8 hexadecimal digits>
//! leases/<server>/answers/<number of the claim, 8 hexadecimal digits>
//! placements/drained/<server>
//! placements/tenants/<tenant>/order-<number of the order, 8 hexadecimal digits>
//! placements/tenants/<tenant>/owner
//! placements/tenants/<tenant>/target
//! servers/<server>
//! tenants/<tenant>/generations/<generation, 8 hexadecimal digits>
//! tenants/<tenant>/hot-layers
//! tenants/<tenant>/timelines/<timeline>/index_part-<generation, 8 hexadecimal digits>
//! tenants/<tenant>/timelines/<timeline>/<file name of the layer, which includes its generation>
//! tenants/<tenant>/timelines/<timeline>/layers-<generation, 8 hexadecimal digits>-<edition, 16 of them>
//! tenants/<tenant>/timelines/<timeline>/origin-<generation, 8 hexadecimal digits>
//! ```

use std::fmt;

use object_store::path::Path;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

/// Prefix of the names of index parts.
pub const INDEX_PART_PREFIX: &str = "index_part-";

/// Prefix of the names of lists of layers. They sort after index parts, and those after layers.
pub const LAYER_LIST_PREFIX: &str = "layers-";

/// Prefix of the names of origins. They sort after lists of layers.
pub const ORIGIN_PREFIX: &str = "origin-";

/// Names of objects of the tail start with this: WAL that layers do not have yet.
pub const TAIL_PREFIX: &str = "tail-";

/// The path of an object in its bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemotePath(Path);

impl RemotePath {
    /// The object that probes whether the bucket refuses to create an existing object.
    pub fn condition_probe() -> Self {
        Self(Path::from("conditional-write-probe"))
    }

    /// What a server renews as long as it is there.
    pub fn lease(server: &str) -> Self {
        Self(Path::from(format!("leases/{server}/lease")))
    }

    /// Prefix of all leases.
    pub fn leases() -> Self {
        Self(Path::from("leases"))
    }

    /// Prefix of all that belongs to a server's lease.
    pub fn leases_of(server: &str) -> Self {
        Self(Path::from(format!("leases/{server}")))
    }

    /// Prefix of orders about where tenants are to be.
    pub fn placements() -> Self {
        Self(Path::from("placements"))
    }

    /// What says that a server is to own nothing.
    pub fn drained(server: &str) -> Self {
        Self(Path::from(format!("placements/drained/{server}")))
    }

    /// Prefix of orders about a tenant.
    pub fn placement(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("placements/tenants/{tenant}")))
    }

    /// An order about a tenant.
    pub fn order(tenant: &TenantShardId, number: u32) -> Self {
        Self(Path::from(format!("placements/tenants/{tenant}/order-{number:08x}")))
    }

    /// What a server says of an order, as its `side`.
    pub fn placement_word(tenant: &TenantShardId, side: &str) -> Self {
        Self(Path::from(format!("placements/tenants/{tenant}/{side}")))
    }

    /// Prefix of what servers say of themselves.
    pub fn server_cards() -> Self {
        Self(Path::from("servers"))
    }

    /// What a server says of itself.
    pub fn server_card(server: &str) -> Self {
        Self(Path::from(format!("servers/{server}")))
    }

    /// What asks a server for a lease.
    pub fn lease_wanted(server: &str) -> Self {
        Self(Path::from(format!("leases/{server}/wanted")))
    }

    /// Prefix of the claims to what a server owns.
    pub fn claims(server: &str) -> Self {
        Self(Path::from(format!("leases/{server}/claims")))
    }

    /// A claim to what a server owns.
    pub fn claim(server: &str, number: u32) -> Self {
        Self(Path::from(format!("leases/{server}/claims/{number:08x}")))
    }

    /// Whether a claim is justified.
    pub fn answer(server: &str, number: u32) -> Self {
        Self(Path::from(format!("leases/{server}/answers/{number:08x}")))
    }

    /// Prefix of all tenants.
    pub fn tenants() -> Self {
        Self(Path::from("tenants"))
    }

    /// Prefix of everything that belongs to a tenant shard.
    pub fn tenant(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}")))
    }

    /// Prefix of the generations of a tenant shard.
    pub fn generations(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/generations")))
    }

    /// The object whose existence shows that a generation was taken.
    pub fn generation(tenant: &TenantShardId, generation: u32) -> Self {
        Self(Path::from(format!("tenants/{tenant}/generations/{generation:08x}")))
    }

    /// A tenant's hot list.
    pub fn hot_layers(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/hot-layers")))
    }

    /// Prefix of the timelines of a tenant shard.
    pub fn timelines(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines")))
    }

    /// Prefix of everything that belongs to a timeline.
    pub fn timeline(tenant: &TenantShardId, timeline: &TimelineId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines/{timeline}")))
    }

    /// The index part of a timeline, as written by a generation.
    pub fn index_part(tenant: &TenantShardId, timeline: &TimelineId, generation: u32) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines/{timeline}/{INDEX_PART_PREFIX}{generation:08x}")))
    }

    /// The immutable origin of a timeline, as written by a generation.
    pub fn origin(tenant: &TenantShardId, timeline: &TimelineId, generation: u32) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines/{timeline}/{ORIGIN_PREFIX}{generation:08x}")))
    }

    /// A layer, or a list of layers, by its file name, which includes its generation.
    pub fn layer(tenant: &TenantShardId, timeline: &TimelineId, file_name: &str) -> Self {
        Self::timeline(tenant, timeline).child(file_name)
    }

    /// What has this name below a prefix. For many of one prefix: nothing of that is made or looked at again.
    pub fn child(&self, name: &str) -> Self {
        Self(self.0.clone().join(name))
    }

    /// The last component.
    pub fn file_name(&self) -> &str {
        self.0.filename().unwrap_or_default()
    }

    /// The path as a type of the crate `object_store`.
    pub fn as_path(&self) -> &Path {
        &self.0
    }
}

impl From<Path> for RemotePath {
    fn from(path: Path) -> Self {
        Self(path)
    }
}

impl fmt::Display for RemotePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
