//! The manifest: the one small file that says what a timeline consists of.
//!
//! It names every layer file with its size, and is replaced as a whole after the layers that it names are durable.
//! After a crash the timeline is therefore what the manifest says, and files that it does not name are leftovers.
//! `docs/formats.md` describes the bytes.

mod former;
mod kept;

use std::ops::Range;

use camino::{Utf8Path, Utf8PathBuf};
use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use postgres_formats::version::PgVersion;
use serde::{Deserialize, Serialize};
use utils::bin_ser::BeSer;
use utils::id::TimelineId;
use utils::lsn::Lsn;

use self::former::Former;
pub use self::kept::{Hold, Kept, Limits};
use crate::resources::Resources;
use crate::tenant::layer_map::Layer;
use crate::tenant::storage_layer::{LayerFileName, LayerIdentity, PersistentLayerDesc};
use errors::{ErrorKind, StorageError};
use virtual_file::fs;

/// The manifest's name in its timeline's directory.
pub const MANIFEST_NAME: &str = "manifest";

/// Up to format version 3, a file of this name held the externally supplied metadata of the timeline.
pub(crate) const WAL_SOURCE_NAME: &str = "wal_source";

const MAGIC: [u8; 8] = *b"PGSMANIF";
const FORMAT_VERSION: u32 = 6;
/// The oldest readable version.
const OLDEST_VERSION: u32 = 3;
const HEADER_LEN: usize = 12;
const CRC_LEN: usize = 4;

/// Externally supplied metadata of a timeline, which the server's `walreceiver` reads and writes. It may contain a
/// password, so it is never shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Told(pub String);

impl Told {
    /// Whether it is what was written, as far as can be verified: an earlier version stored it without a checksum.
    pub(crate) fn is_sound(&self) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(&self.0).is_ok()
    }
}

impl std::fmt::Debug for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Told").finish_non_exhaustive()
    }
}

/// The immutable properties of a timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Major version of the cluster.
    #[serde(with = "major_version")]
    pub pg_version: PgVersion,
    /// The cluster's system identifier (`system_identifier` in `pg_control`).
    pub system_identifier: u64,
    /// Size of a WAL segment in bytes.
    pub wal_segment_size: u32,
    /// Whether the cluster has data checksums.
    pub data_checksums: bool,
    /// `wal_log_hints` at import.
    pub wal_log_hints: bool,
    /// Where the timeline's own layers begin: the LSN of the imported data directory, or the branch point.
    pub import_lsn: Lsn,
    /// From here on, pages are as some server had them. A base backup is consistent only at its end; the history of a
    /// branch goes back as far as that of its ancestor.
    pub consistent_lsn: Lsn,
    /// The timeline that this one continues.
    pub ancestor: Option<Ancestor>,
}

impl Origin {
    /// A cluster as `initdb` creates it by default (segments of 16 MiB, no checksums), whose history begins at `lsn`.
    pub const fn of_initdb(pg_version: PgVersion, system_identifier: u64, lsn: Lsn) -> Self {
        Self {
            pg_version,
            system_identifier,
            wal_segment_size: 16 << 20,
            data_checksums: false,
            wal_log_hints: false,
            import_lsn: lsn,
            consistent_lsn: lsn,
            ancestor: None,
        }
    }
}

/// Where a timeline branches off another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ancestor {
    /// The other timeline.
    pub timeline_id: TimelineId,
    /// The last LSN that both have in common.
    pub lsn: Lsn,
}

/// The part of a layer file that belongs to the timeline; the rest is dead and will not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Visible {
    /// Keys, end exclusive.
    pub keys: (Key, Key),
    /// LSNs, end exclusive.
    pub lsns: (Lsn, Lsn),
}

/// A layer file as the manifest names it. No two entries name the same file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerEntry {
    /// Whether it is a delta layer; otherwise it is an image layer.
    pub is_delta: bool,
    /// Keys covered by the file, end exclusive.
    pub keys: (Key, Key),
    /// LSNs covered by the file, end exclusive; one LSN for an image layer.
    pub lsns: (Lsn, Lsn),
    /// Generation in the file's name.
    pub generation: u32,
    /// Whether the file's name ends in its id. Up to manifests of version 4 names did not.
    pub id_in_name: bool,
    /// Size of the file in bytes.
    pub file_size: u64,
    /// Distinguishes the file from any other.
    pub identity: LayerIdentity,
    /// The part of it that counts, if not all of it does.
    pub visible: Option<Visible>,
}

/// A manifest's content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The tenant shard, to detect a file in the wrong place.
    pub tenant_shard_id: TenantShardId,
    /// The timeline.
    pub timeline_id: TimelineId,
    /// The generation that wrote this; 0 if there never was a bucket.
    pub generation: u32,
    /// Whether the bucket has, or had, an index part of this timeline.
    pub in_bucket: bool,
    /// In the bucket: the timeline is being deleted, and nothing of it may be used any more.
    pub deleted: bool,
    /// Externally supplied metadata: the timeline's name, and where its WAL comes from.
    pub wal_source: Option<Told>,
    /// The timeline's immutable properties.
    pub origin: Origin,
    /// Ends of the records that changed `wal_log_hints`, oldest first, and the new value.
    pub wal_log_hints_changes: Vec<(Lsn, bool)>,
    /// Everything up to this LSN is in the layers named here.
    pub disk_consistent_lsn: Lsn,
    /// Start of the record that ends at `disk_consistent_lsn`; 0/0 if not known.
    pub prev_record_lsn: Lsn,
    /// Grows whenever a layer other than the next L0 layer is added, or one is removed: of two manifests of one owner
    /// with the same `disk_consistent_lsn`, the one with the larger edition is the later one.
    pub edition: u64,
    /// Below this LSN only the `retained` ones are readable; 0/0 if the whole history is.
    pub gc_cutoff: Lsn,
    /// Readable LSNs below `gc_cutoff`, ascending.
    pub retained: Vec<Lsn>,
    /// All layers.
    pub layers: Vec<LayerEntry>,
    /// Holds and leases, when history arrived, and how much of it is kept.
    pub kept: Kept,
    /// The timeline needs its ancestor no more: it begins at `origin.import_lsn`, of which it has all pages.
    pub detached: bool,
}

impl LayerEntry {
    /// The entry of `layer`.
    pub fn of(layer: &Layer) -> Self {
        let (desc, file) = (layer.desc(), layer.file_desc());
        let visible = Visible {
            keys: (desc.key_range.start, desc.key_range.end),
            lsns: (desc.lsn_range.start, desc.lsn_range.end),
        };
        Self {
            is_delta: desc.is_delta,
            keys: (file.key_range.start, file.key_range.end),
            lsns: (file.lsn_range.start, file.lsn_range.end),
            visible: (desc != file).then_some(visible),
            generation: layer.generation(),
            id_in_name: layer.file_name().file_id.is_some(),
            file_size: desc.file_size,
            identity: layer.identity(),
        }
    }

    /// An image layer covers one LSN, and what is visible lies within the file.
    fn is_well_formed(&self) -> bool {
        let covers_one = self.lsns.0.0.checked_add(1) == Some(self.lsns.1.0);
        let within = self.visible.is_none_or(|Visible { keys, lsns }| {
            self.keys.0 <= keys.0 && keys.1 <= self.keys.1 && self.lsns.0 <= lsns.0 && lsns.1 <= self.lsns.1
        });
        (self.is_delta || covers_one) && within
    }

    /// The description of the entry's layer: what is visible of its file.
    pub fn desc(&self, tenant_shard_id: TenantShardId, timeline_id: TimelineId) -> PersistentLayerDesc {
        let file = self.file_desc(tenant_shard_id, timeline_id);
        match self.visible {
            Some(Visible { keys, lsns }) => {
                PersistentLayerDesc { key_range: range(keys), lsn_range: range(lsns), ..file }
            }
            None => file,
        }
    }

    /// The description of the whole file.
    pub fn file_desc(&self, tenant_shard_id: TenantShardId, timeline_id: TimelineId) -> PersistentLayerDesc {
        PersistentLayerDesc {
            tenant_shard_id,
            timeline_id,
            key_range: range(self.keys),
            lsn_range: range(self.lsns),
            is_delta: self.is_delta,
            file_size: self.file_size,
        }
    }

    /// The name of its file.
    pub fn file_name(&self, tenant_shard_id: TenantShardId, timeline_id: TimelineId) -> LayerFileName {
        let name = self.file_desc(tenant_shard_id, timeline_id).layer_name();
        let file_id = self.id_in_name.then_some(self.identity.file_id);
        LayerFileName { name, generation: self.generation, file_id }
    }

    /// The layer of the entry, in the timeline directory `dir`.
    pub fn to_layer(
        &self,
        resources: &Resources,
        dir: &Utf8Path,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
    ) -> Layer {
        let file = self.file_desc(tenant_shard_id, timeline_id);
        let name = self.file_name(tenant_shard_id, timeline_id);
        Layer::named(resources, dir, file, name, self.identity).showing(self.desc(tenant_shard_id, timeline_id))
    }
}

fn range<T>((start, end): (T, T)) -> Range<T> {
    start..end
}

impl Manifest {
    /// The timeline whose layers this one needs too.
    pub fn ancestor(&self) -> Option<Ancestor> {
        self.origin.ancestor.filter(|_| !self.detached)
    }

    /// The path of the manifest in the timeline directory `dir`.
    pub fn path(dir: &Utf8Path) -> Utf8PathBuf {
        dir.join(MANIFEST_NAME)
    }

    /// The file name of one of its layers.
    pub(crate) fn file_name(&self, entry: &LayerEntry) -> String {
        entry.file_name(self.tenant_shard_id, self.timeline_id).to_string()
    }

    /// The same timeline before anything happened to it: only its immutable properties.
    pub(crate) fn without_history(&self) -> Self {
        Self {
            wal_source: None,
            wal_log_hints_changes: Vec::new(),
            disk_consistent_lsn: self.origin.import_lsn,
            prev_record_lsn: Lsn::INVALID,
            edition: 0,
            gc_cutoff: Lsn::INVALID,
            retained: Vec::new(),
            layers: Vec::new(),
            kept: Kept::default(),
            detached: false,
            ..self.clone()
        }
    }

    /// The file's bytes.
    pub fn encode(&self) -> Result<Vec<u8>, StorageError> {
        let mut out = Vec::new();
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&FORMAT_VERSION.to_be_bytes());
        self.ser_into(&mut out).map_err(|error| StorageError::Internal(format!("manifest: {error}")))?;
        let crc = utils::crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_be_bytes());
        Ok(out)
    }

    /// Decodes the bytes of a manifest; `path` is for errors.
    pub fn decode(path: &Utf8Path, bytes: &[u8]) -> Result<Self, StorageError> {
        let corrupt = |offset: usize, reason: String| StorageError::Corrupt {
            path: path.to_owned(),
            offset: offset as u64,
            reason,
        };
        let too_short = || corrupt(bytes.len(), "shorter than a manifest's header".to_owned());
        let (covered, crc) = bytes.split_last_chunk::<CRC_LEN>().ok_or_else(too_short)?;
        let (header, body) = covered.split_at_checked(HEADER_LEN).ok_or_else(too_short)?;
        let (magic, version) = header.split_at(MAGIC.len());
        if magic != MAGIC {
            return Err(corrupt(0, "not a manifest: wrong magic".to_owned()));
        }
        let computed = utils::crc32c::crc32c(covered).to_be_bytes();
        if computed != *crc {
            return Err(corrupt(covered.len(), format!("checksum is {crc:02x?}, contents give {computed:02x?}")));
        }
        let number = version.try_into().map_or(0, u32::from_be_bytes);
        if !(OLDEST_VERSION..=FORMAT_VERSION).contains(&number) {
            return Err(StorageError::Invalid(format!("{path}: manifest of unknown format version {version:02x?}")));
        }
        let decoded = match number {
            ..former::NEXT_VERSION => Former::des(body).map(Self::from),
            // It ends where `kept` begins.
            former::NEXT_VERSION => Self::des(&[body, &former::NOTHING_KEPT].concat()),
            _ => Self::des(body),
        };
        let manifest = decoded.map_err(|error| corrupt(HEADER_LEN, error.to_string()))?;
        match manifest.layers.iter().find(|entry| !entry.is_well_formed()) {
            Some(entry) => Err(corrupt(HEADER_LEN, format!("impossible layer {entry:?}"))),
            None => Ok(manifest),
        }
    }

    /// Reads the manifest in directory `dir`, which must be that of the given timeline. Includes what an earlier
    /// version stored in a file of its own.
    pub async fn load(
        dir: &Utf8Path,
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
    ) -> Result<Self, StorageError> {
        let path = Self::path(dir);
        let mut manifest = Self::decode(&path, &virtual_file::read_file(&path).await?)?;
        if manifest.wal_source.is_none() {
            manifest.wal_source = told_apart(dir).await?;
        }
        if (manifest.tenant_shard_id, manifest.timeline_id) != (tenant_shard_id, timeline_id) {
            let reason = format!("belongs to tenant {}, timeline {}", manifest.tenant_shard_id, manifest.timeline_id);
            return Err(StorageError::Corrupt { path, offset: HEADER_LEN as u64, reason });
        }
        Ok(manifest)
    }

    /// Replaces the manifest in directory `dir`. The layers it names must be durable. Only the owner may read it.
    pub async fn store(&self, dir: &Utf8Path) -> Result<(), StorageError> {
        virtual_file::write_secret_durably(&Self::path(dir), &self.encode()?).await
    }
}

impl From<Former<Origin, Told>> for Manifest {
    fn from(former: Former<Origin, Told>) -> Self {
        Self {
            tenant_shard_id: former.tenant_shard_id,
            timeline_id: former.timeline_id,
            generation: former.generation,
            in_bucket: former.in_bucket,
            deleted: former.deleted,
            wal_source: former.wal_source,
            origin: former.origin,
            wal_log_hints_changes: former.wal_log_hints_changes,
            disk_consistent_lsn: former.disk_consistent_lsn,
            prev_record_lsn: former.prev_record_lsn,
            edition: 0,
            gc_cutoff: Lsn::INVALID,
            retained: Vec::new(),
            layers: former.layers.into_iter().map(LayerEntry::from).collect(),
            kept: Kept::default(),
            detached: false,
        }
    }
}

impl From<former::Entry> for LayerEntry {
    fn from(former: former::Entry) -> Self {
        let former::Entry { is_delta, keys, lsns, generation, file_size, file_id, tail_offset } = former;
        let identity = LayerIdentity { file_id, tail_offset, filter_blocks: 0 };
        Self { is_delta, keys, lsns, generation, id_in_name: false, file_size, identity, visible: None }
    }
}

/// The metadata that an earlier version stored in a file of its own, if there is one.
async fn told_apart(dir: &Utf8Path) -> Result<Option<Told>, StorageError> {
    match virtual_file::read_file(&dir.join(WAL_SOURCE_NAME)).await {
        // Invalid contents are reported when they are used.
        Ok(bytes) => Ok(Some(Told(String::from_utf8_lossy(&bytes).into_owned()))),
        Err(error) if error.kind() == ErrorKind::Gone => Ok(None),
        Err(error) => Err(error),
    }
}

/// Moves what an earlier version stored in a separate file into `manifest`, which must be that of `dir`.
pub(crate) async fn take_in_told(dir: &Utf8Path, manifest: &Manifest) -> Result<(), StorageError> {
    if told_apart(dir).await?.is_some() {
        manifest.store(dir).await?;
        fs::unlink(&dir.join(WAL_SOURCE_NAME)).await?;
        fs::fsync_dir(dir).await?;
    }
    Ok(())
}

/// Serializes a version as its major number, a `u32`.
mod major_version {
    use super::{Deserialize, PgVersion};
    use serde::de::Error;
    use serde::{Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(version: &PgVersion, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(version.major())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PgVersion, D::Error> {
        let major = u32::deserialize(deserializer)?;
        PgVersion::from_major(major).ok_or_else(|| D::Error::custom(format!("unknown Postgres version {major}")))
    }
}

#[cfg(test)]
mod tests;
