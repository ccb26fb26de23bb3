//! Bodies of requests and answers. Members have the names that clients of this kind of server know; what exists only
//! here comes at the end of each.

use std::collections::BTreeMap;

use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utoipa::ToSchema;

use super::ids::{LsnText, TenantShardText, TenantText, TimelineText};
use engine::disk_budget::Level;

/// A state, as `slug` and what there is to say about it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Slug {
    /// The state's name.
    pub(crate) slug: &'static str,
}

/// A tenant.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TenantInfo {
    /// Its id.
    #[schema(value_type = TenantShardText)]
    pub(crate) id: TenantShardId,
    /// Active; Fenced: another server has taken it over, and this one serves what it has; or Broken: it could not be
    /// attached.
    pub(crate) state: Slug,
    /// Why it is Broken.
    pub(crate) reason: Option<String>,
    /// Bytes of all layer files.
    pub(crate) current_physical_size: u64,
    /// Always attached.
    pub(crate) attachment_status: Slug,
    /// Its timelines, those that could not be opened among them.
    #[schema(value_type = Vec<TimelineText>)]
    pub(crate) timelines: Vec<TimelineId>,
    /// The generation that this server holds; null without object storage.
    pub(crate) generation: Option<u32>,
    /// Why this server writes nothing more, if so.
    pub(crate) fenced: Option<String>,
    /// Bytes of layers that are whole on this disk.
    pub(crate) resident_bytes: u64,
    /// Bytes of layers that object storage has.
    pub(crate) in_bucket_bytes: u64,
}

/// How a tenant is to be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, ToSchema)]
pub(crate) enum LocationMode {
    /// This server has it: it is taken over from whoever had it.
    AttachedSingle,
    /// Not supported.
    AttachedMulti,
    /// Not supported.
    AttachedStale,
    /// Not supported.
    Secondary,
    /// This server lets go of it, once all is in object storage.
    Detached,
}

/// Settings of one tenant: there are none as yet.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TenantConf {}

/// How a tenant is to be here.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LocationConfig {
    /// AttachedSingle makes the tenant if it is nowhere yet.
    pub(crate) mode: LocationMode,
    /// Taken for compatibility: generations are taken in object storage.
    #[serde(rename = "generation")]
    pub(crate) _generation: Option<u32>,
    /// Must be null.
    #[schema(value_type = Option<Object>)]
    pub(crate) secondary_conf: Option<serde_json::Value>,
    /// Must be 0.
    #[serde(default)]
    pub(crate) shard_number: u8,
    /// Must be 0: not sharded.
    #[serde(default)]
    pub(crate) shard_count: u8,
    /// Without effect where there are no shards.
    #[serde(default, rename = "shard_stripe_size")]
    pub(crate) _shard_stripe_size: u32,
    /// Settings of the tenant.
    #[serde(default, rename = "tenant_conf")]
    pub(crate) _tenant_conf: TenantConf,
}

/// Where a tenant's shards are.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LocationAnswer {
    /// One for each shard.
    pub(crate) shards: Vec<ShardLocation>,
    /// Null: not sharded.
    #[schema(value_type = Option<u32>)]
    pub(crate) stripe_size: Option<u32>,
}

/// Where a shard is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ShardLocation {
    /// The shard.
    #[schema(value_type = TenantShardText)]
    pub(crate) shard_id: TenantShardId,
    /// This server.
    pub(crate) node_id: u64,
}

/// Whether a timeline serves: `"Active"`, or why it does not.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) enum TimelineState {
    /// It serves.
    Active,
    /// It serves what it has, but takes no more writes; or it could not be opened.
    Broken {
        /// Why.
        reason: String,
    },
}

/// A timeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TimelineInfo {
    /// Its tenant.
    #[schema(value_type = TenantShardText)]
    pub(crate) tenant_id: TenantShardId,
    /// Its id.
    #[schema(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
    /// The branch's name, if it was given one.
    pub(crate) name: Option<String>,
    /// The timeline that it branches off.
    #[schema(value_type = Option<TimelineText>)]
    pub(crate) ancestor_timeline_id: Option<TimelineId>,
    /// The last LSN that it has in common with that.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) ancestor_lsn: Option<Lsn>,
    /// History is complete up to here, in memory.
    #[schema(value_type = LsnText)]
    pub(crate) last_record_lsn: Lsn,
    /// Start of the last record; null if not known.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) prev_record_lsn: Option<Lsn>,
    /// History is complete up to here, on disk.
    #[schema(value_type = LsnText)]
    pub(crate) disk_consistent_lsn: Lsn,
    /// Nothing below is readable.
    #[schema(value_type = LsnText)]
    pub(crate) min_readable_lsn: Lsn,
    /// The same: nothing is collected as yet.
    #[schema(value_type = LsnText)]
    pub(crate) applied_gc_cutoff_lsn: Lsn,
    /// Its own history begins here.
    #[schema(value_type = LsnText)]
    pub(crate) initdb_lsn: Lsn,
    /// Bytes of its layer files.
    pub(crate) current_physical_size: u64,
    /// Major version of Postgres.
    pub(crate) pg_version: u32,
    /// Whether it serves.
    pub(crate) state: TimelineState,
    /// Where its WAL comes from, and how that goes; null if it has no source.
    #[schema(value_type = Option<Object>)]
    pub(crate) walreceiver_status: Option<serde_json::Value>,
    /// Always false.
    pub(crate) is_archived: bool,
    /// Timelines that branch off it.
    #[schema(value_type = Vec<TimelineText>)]
    pub(crate) children: Vec<TimelineId>,
    /// The cluster's own identifier.
    pub(crate) system_identifier: u64,
    /// Bytes of a WAL segment.
    pub(crate) wal_segment_size: u32,
    /// Layer files.
    pub(crate) layer_count: usize,
    /// L0 layers among them.
    pub(crate) l0_layer_count: usize,
    /// In-memory layers that wait to be written.
    pub(crate) frozen_layer_count: usize,
    /// Bytes of values in memory and ephemeral files.
    pub(crate) in_memory_bytes: u64,
    /// History is complete up to here in object storage; null if it is not there.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) remote_consistent_lsn: Option<Lsn>,
    /// The generation that this server writes under; 0 if there never was object storage.
    pub(crate) generation: u32,
    /// Why this server writes nothing more, if so.
    pub(crate) fenced: Option<String>,
    /// Bytes of layers that are whole on this disk.
    pub(crate) resident_bytes: u64,
    /// Bytes of layers that object storage has.
    pub(crate) in_bucket_bytes: u64,
    /// Layers that wait to be uploaded.
    pub(crate) upload_layers: usize,
    /// Their bytes.
    pub(crate) upload_bytes: u64,
    /// Why the last upload failed, until one succeeds.
    pub(crate) upload_error: Option<String>,
}

/// A timeline that could not be opened. It has these members only: so it is told from one that is open.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BrokenTimeline {
    /// Its tenant.
    #[schema(value_type = TenantShardText)]
    pub(crate) tenant_id: TenantShardId,
    /// Its id.
    #[schema(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
    /// Why.
    pub(crate) state: TimelineState,
}

/// A timeline in a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ListedTimeline {
    /// It is open.
    Open(Box<TimelineInfo>),
    /// It could not be opened.
    Broken(BrokenTimeline),
}

/// A branch to be made.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimelineCreate {
    /// A name, which no other branch of the tenant may have: a letter or digit, then letters, digits and `_.-`, 63 at
    /// most.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Its id, drawn by the caller so that he may try again.
    #[schema(value_type = TimelineText)]
    pub(crate) new_timeline_id: TimelineId,
    /// The timeline to branch off.
    #[schema(value_type = Option<TimelineText>)]
    pub(crate) ancestor_timeline_id: Option<TimelineId>,
    /// The last LSN to have in common; the ancestor's last record if not given.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) ancestor_start_lsn: Option<Lsn>,
    /// Instead of an LSN: the last commit to have in common is the last one up to this moment (RFC 3339, or how long
    /// ago by the server's clock, such as `10 minutes ago`).
    pub(crate) ancestor_start_timestamp: Option<String>,
    /// If given, must be that of the ancestor.
    pub(crate) pg_version: Option<u32>,
    /// Must be false.
    #[serde(default)]
    pub(crate) read_only: bool,
}

/// An LSN.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LsnBody {
    /// Such as 0/16B3748.
    #[schema(value_type = LsnText)]
    pub(crate) lsn: Lsn,
}

/// A lease.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeaseAnswer {
    /// The LSN stays readable until then (RFC 3339).
    pub(crate) valid_until: String,
}

/// Where a moment lies in history.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LsnByTimestampAnswer {
    /// See `kind`.
    #[schema(value_type = LsnText)]
    pub(crate) lsn: Lsn,
    /// present: the last LSN whose commits are not after the moment; future: no commit is after it, the last LSN;
    /// past: all are, the first readable LSN; nodata: no commit is known, the last LSN.
    pub(crate) kind: &'static str,
    /// Until when the LSN is leased, if a lease was asked for.
    pub(crate) valid_until: Option<String>,
}

/// LSNs to wait for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitLsn {
    /// By timeline.
    #[schema(value_type = BTreeMap<TimelineText, LsnText>)]
    pub(crate) timelines: BTreeMap<TimelineId, Lsn>,
    /// How long at most, such as `10s`.
    pub(crate) timeout: String,
}

/// The layers of a timeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LayersAnswer {
    /// From new to old.
    pub(crate) in_memory_layers: Vec<InMemoryLayer>,
    /// Files.
    pub(crate) historic_layers: Vec<HistoricLayer>,
}

/// A layer in memory.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InMemoryLayer {
    /// Open or Frozen.
    pub(crate) kind: &'static str,
    /// First LSN.
    #[schema(value_type = LsnText)]
    pub(crate) lsn_start: Lsn,
    /// End of its LSNs so far, exclusive.
    #[schema(value_type = LsnText)]
    pub(crate) lsn_end: Lsn,
    /// Bytes of values.
    pub(crate) size: u64,
}

/// A layer file.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HistoricLayer {
    /// Delta or Image.
    pub(crate) kind: &'static str,
    /// Its name.
    pub(crate) layer_file_name: String,
    /// Bytes.
    pub(crate) layer_file_size: u64,
    /// First LSN.
    #[schema(value_type = LsnText)]
    pub(crate) lsn_start: Lsn,
    /// End of its LSNs, exclusive; null for images, which are as of `lsn_start`.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) lsn_end: Option<Lsn>,
    /// Whether it is in object storage only, but for blocks that are cached.
    pub(crate) remote: bool,
    /// Whether object storage has it.
    pub(crate) in_bucket: bool,
    /// Whether it covers all keys, because it was written from memory.
    pub(crate) l0: bool,
    /// First key.
    pub(crate) key_start: String,
    /// End of its keys, exclusive.
    pub(crate) key_end: String,
}

/// Which keys exist.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeySpaceAnswer {
    /// Ranges, end exclusive, of which every key has a value.
    pub(crate) keys: Vec<[String; 2]>,
    /// Ranges, end exclusive, of which some keys have a value.
    pub(crate) sparse_keys: Vec<[String; 2]>,
    /// As of here.
    #[schema(value_type = LsnText)]
    pub(crate) at_lsn: Lsn,
}

/// A cluster to be attached.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttachBody {
    /// How to reach the server: `postgres://user:password@host:port` or `host=... user=...`. The user needs
    /// REPLICATION.
    pub(crate) connstr: String,
    /// The tenant to make; drawn if not given.
    #[schema(value_type = Option<TenantText>)]
    pub(crate) tenant_id: Option<TenantId>,
    /// The timeline to make; drawn if not given.
    #[schema(value_type = Option<TimelineText>)]
    pub(crate) timeline_id: Option<TimelineId>,
    /// Name of the replication slot; made from the timeline's id if not given.
    pub(crate) slot: Option<String>,
}

/// What an attachment was begun for.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AttachAnswer {
    /// The tenant.
    #[schema(value_type = TenantShardText)]
    pub(crate) tenant_id: TenantShardId,
    /// The timeline.
    #[schema(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
}

/// What a deletion leaves to others.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct DeleteAnswer {
    /// Replication slots to drop on their servers, which keep all WAL for them until then.
    pub(crate) left_slots: Vec<LeftSlot>,
}

/// The server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusAnswer {
    /// Always 1: there is one server.
    pub(crate) id: u64,
    /// Version of the program.
    pub(crate) version: &'static str,
    /// Tenants that another server has taken over.
    #[schema(value_type = Vec<TenantShardText>)]
    pub(crate) fenced_tenants: Vec<TenantShardId>,
    /// The local disk, once it was measured.
    pub(crate) disk: Option<DiskStatus>,
}

/// The local disk.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiskStatus {
    /// What happens to WAL that comes in: Open, Slow, or Refuse for lack of room.
    #[schema(value_type = String)]
    pub(crate) intake: Level,
    /// Bytes that may still be taken in; negative if there are too many already.
    pub(crate) room: i64,
    /// Bytes of layers, whole and partial.
    pub(crate) resident: u64,
    /// Bytes of layers among them that the bucket does not have yet.
    pub(crate) not_uploaded: u64,
    /// Bytes of values in in-memory layers.
    pub(crate) in_memory: u64,
    /// Bytes free on the file system.
    pub(crate) free: Option<u64>,
}

/// A replication slot that nobody reads from any more: until somebody drops it, its server keeps all WAL.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeftSlot {
    /// The server.
    pub(crate) host: String,
    /// The slot's name.
    pub(crate) slot: String,
}
