//! Where objects are. The layout is described in `docs/formats.md`.
//!
//! ```text
//! conditional-write-probe
//! tenants/<tenant>/generations/<generation, 8 hexadecimal digits>
//! tenants/<tenant>/hot-layers
//! tenants/<tenant>/timelines/<timeline>/index_part-<generation, 8 hexadecimal digits>
//! tenants/<tenant>/timelines/<timeline>/<file name of the layer, which tells its generation>
//! tenants/<tenant>/timelines/<timeline>/origin-<generation, 8 hexadecimal digits>
//! ```

use std::fmt;

use object_store::path::Path;
use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

/// What names of index parts begin with.
pub const INDEX_PART_PREFIX: &str = "index_part-";

/// What names of origins begin with. They come after those of index parts, and these after those of layers.
pub const ORIGIN_PREFIX: &str = "origin-";

/// The path of an object in its bucket.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RemotePath(Path);

impl RemotePath {
    /// An object that no one may create twice.
    pub fn condition_probe() -> Self {
        Self(Path::from("conditional-write-probe"))
    }

    /// Below which all tenants are.
    pub fn tenants() -> Self {
        Self(Path::from("tenants"))
    }

    /// Below which everything of a tenant shard is.
    pub fn tenant(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}")))
    }

    /// Below which the generations of a tenant shard are.
    pub fn generations(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/generations")))
    }

    /// The object whose existence says that a generation was given out.
    pub fn generation(tenant: &TenantShardId, generation: u32) -> Self {
        Self(Path::from(format!("tenants/{tenant}/generations/{generation:08x}")))
    }

    /// Which layers of a tenant were read lately.
    pub fn hot_layers(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/hot-layers")))
    }

    /// Below which the timelines of a tenant shard are.
    pub fn timelines(tenant: &TenantShardId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines")))
    }

    /// Below which everything of a timeline is.
    pub fn timeline(tenant: &TenantShardId, timeline: &TimelineId) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines/{timeline}")))
    }

    /// What a timeline consists of, as a generation says.
    pub fn index_part(tenant: &TenantShardId, timeline: &TimelineId, generation: u32) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines/{timeline}/{INDEX_PART_PREFIX}{generation:08x}")))
    }

    /// What a timeline is, for ever, as a generation has written it down.
    pub fn origin(tenant: &TenantShardId, timeline: &TimelineId, generation: u32) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines/{timeline}/{ORIGIN_PREFIX}{generation:08x}")))
    }

    /// A layer, by its file name, which tells its generation.
    pub fn layer(tenant: &TenantShardId, timeline: &TimelineId, file_name: &str) -> Self {
        Self(Path::from(format!("tenants/{tenant}/timelines/{timeline}/{file_name}")))
    }

    /// The last part.
    pub fn file_name(&self) -> &str {
        self.0.filename().unwrap_or_default()
    }

    /// As the crate `object_store` has it.
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
