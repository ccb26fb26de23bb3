//! Bodies of requests and answers. Members have the names that clients of this kind of server know; members specific
//! to this server come last.

pub(crate) mod fleet;
mod init;
mod location;

use std::collections::BTreeMap;

use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};
use utils::id::{TenantId, TimelineId};
use utils::lsn::Lsn;
use utoipa::ToSchema;

use super::condition::Condition;
use super::ids::{LsnText, TenantShardText, TenantText, TimelineText};
use crate::walreceiver::StandbyStatus;
use engine::disk_budget::Level;
use engine::tenant::timeline;
pub(crate) use init::{InitInfo, SqlBody, SqlInfo};
pub(crate) use location::{LocationAnswer, LocationConfig, LocationMode, ShardLocation};

/// A state, represented by its `slug`.
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
    /// Active; Fenced: another server has taken the tenant over, and this one still serves what it has; Unleased: the
    /// lease of this server has ended; Standby: another server owns it; or Broken: the tenant could not be attached.
    pub(crate) state: Slug,
    /// Why the tenant is Broken or Unleased, or what keeps this server from taking it over.
    pub(crate) reason: Option<String>,
    /// The owner, if this server is a standby.
    pub(crate) owner: Option<OwnerInfo>,
    /// What this server receives, if it is a standby that has a journal, for each timeline with a source.
    #[schema(value_type = Vec<Object>)]
    pub(crate) standby: Vec<StandbyStatus>,
    /// Total size of the layer files in bytes.
    pub(crate) current_physical_size: u64,
    /// attached, or standby.
    pub(crate) attachment_status: Slug,
    /// Its timelines, including those that could not be opened.
    #[schema(value_type = Vec<TimelineText>)]
    pub(crate) timelines: Vec<TimelineId>,
    /// The generation that this server holds, or the owner if it is a standby; null without a bucket.
    pub(crate) generation: Option<u32>,
    /// Why this server no longer writes, if it is fenced.
    pub(crate) fenced: Option<String>,
    /// Size of the resident layers in bytes.
    pub(crate) resident_bytes: u64,
    /// Size of the layers in the bucket, in bytes.
    pub(crate) in_bucket_bytes: u64,
}

/// The owner of a tenant, as a standby sees it.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct OwnerInfo {
    /// Its server id.
    pub(crate) server: String,
    /// The name of its machine.
    pub(crate) host: String,
    /// Its lease: None, and nobody takes over; Believed; Overdue: it was not renewed for too long; Unknown: the bucket
    /// has not answered yet.
    pub(crate) lease: Slug,
    /// In how many milliseconds it is overdue unless it is renewed.
    pub(crate) overdue_in_ms: Option<u64>,
}

/// State of a timeline: `"Active"`, or why it is not.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) enum TimelineState {
    /// The timeline is in service.
    Active,
    /// The timeline serves reads but takes no more writes, or it could not be opened.
    Broken {
        /// The reason.
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
    /// The branch's name, if it has one.
    pub(crate) name: Option<String>,
    /// The timeline that it branches off.
    #[schema(value_type = Option<TimelineText>)]
    pub(crate) ancestor_timeline_id: Option<TimelineId>,
    /// The last LSN that it shares with its ancestor.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) ancestor_lsn: Option<Lsn>,
    /// Where it branched off the ancestor from which it was detached.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) detached_lsn: Option<Lsn>,
    /// How far detaching it is; null if nobody does that.
    pub(crate) detach: Option<DetachProgress>,
    /// End of the last record: history is complete up to here, in memory.
    #[schema(value_type = LsnText)]
    pub(crate) last_record_lsn: Lsn,
    /// Start of the last record; null if unknown.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) prev_record_lsn: Option<Lsn>,
    /// History is complete up to here on disk.
    #[schema(value_type = LsnText)]
    pub(crate) disk_consistent_lsn: Lsn,
    /// From here on every LSN is readable.
    #[schema(value_type = LsnText)]
    pub(crate) min_readable_lsn: Lsn,
    /// Same as `min_readable_lsn`.
    #[schema(value_type = LsnText)]
    pub(crate) applied_gc_cutoff_lsn: Lsn,
    /// Below it the timeline's own history has been removed, but for `retained_lsns`; 0/0 if none has.
    #[schema(value_type = LsnText)]
    pub(crate) gc_cutoff_lsn: Lsn,
    /// Readable LSNs below that, as of the last removal: where branches begin, leases, holds, reads in progress.
    #[schema(value_type = Vec<LsnText>)]
    pub(crate) retained_lsns: Vec<Lsn>,
    /// Named holds of the timeline.
    pub(crate) holds: Vec<Hold>,
    /// Start of the timeline's own history.
    #[schema(value_type = LsnText)]
    pub(crate) initdb_lsn: Lsn,
    /// Total size of its layer files in bytes.
    pub(crate) current_physical_size: u64,
    /// Bytes of all relations, all forks included, as Postgres counts them; 0 until that is known, a short time after
    /// the first request.
    pub(crate) current_logical_size: u64,
    /// Whether that is the size as of the last record. `force-await-initial-logical-size` waits for it.
    pub(crate) current_logical_size_is_accurate: bool,
    /// Entries of directories, as of the same LSN as the logical size: databases, prepared transactions, relation
    /// forks, files besides relations (always 0), segments of clog, of multixact members and of multixact offsets.
    pub(crate) directory_entries_counts: Vec<u64>,
    /// Bytes of WAL from the first LSN from which on all are readable to the end.
    pub(crate) pitr_history_size: u64,
    /// Whether the ancestor still has every LSN from the branch point on; false without an ancestor.
    pub(crate) within_ancestor_pitr: bool,
    /// Major version of Postgres.
    pub(crate) pg_version: u32,
    /// Whether it is in service.
    pub(crate) state: TimelineState,
    /// State of its WAL receiver in a few words; empty if it has no source.
    pub(crate) walreceiver_status: String,
    /// Source and state of its WAL receiver; null if it has no source.
    #[schema(value_type = Option<Object>)]
    pub(crate) walreceiver: Option<serde_json::Value>,
    /// Whether it is archived: it takes in nothing, and only its end is kept.
    pub(crate) is_archived: bool,
    /// Since when it is (RFC 3339); null if it is not.
    pub(crate) archived_at: Option<String>,
    /// Timelines that branch off it.
    #[schema(value_type = Vec<TimelineText>)]
    pub(crate) children: Vec<TimelineId>,
    /// When the branch was made (RFC 3339); null if that is not known.
    pub(crate) created_at: Option<String>,
    /// When it expires: the server deletes it then (RFC 3339); null if it does not.
    pub(crate) expires_at: Option<String>,
    /// Why a branch that has expired is still there; null if it has not.
    pub(crate) expired: Option<String>,
    /// Whether deletion is refused.
    pub(crate) protected: bool,
    /// Its labels.
    pub(crate) labels: BTreeMap<String, String>,
    /// Whose it is.
    pub(crate) owner: Option<String>,
    /// What it is for.
    pub(crate) reason: Option<String>,
    /// The SQL that runs on it before anybody uses it, and how far that is; null if there is none.
    pub(crate) init: Option<InitInfo>,
    /// The SQL that runs on each branch that is made of it.
    pub(crate) branches_init_sql: Option<SqlInfo>,
    /// System identifier of the cluster.
    pub(crate) system_identifier: u64,
    /// Size of a WAL segment in bytes.
    pub(crate) wal_segment_size: u32,
    /// Number of layer files.
    pub(crate) layer_count: usize,
    /// Number of L0 layers among them.
    pub(crate) l0_layer_count: usize,
    /// Largest number of sorted delta layers above an image of the same keys.
    pub(crate) height: usize,
    /// Number of layers that were replaced and are still being read; their files go then.
    pub(crate) replaced_layer_count: usize,
    /// Their bytes.
    pub(crate) replaced_bytes: u64,
    /// What compaction has done since the timeline was opened, by kind of job.
    pub(crate) compaction: CompactionCounts,
    /// Why compaction failed last; null after a success.
    pub(crate) compaction_error: Option<String>,
    /// How well it is compacted, what is owed, why nothing is done, and what keeps space from coming back.
    pub(crate) condition: Condition,
    /// Number of frozen in-memory layers waiting to be flushed.
    pub(crate) frozen_layer_count: usize,
    /// Bytes of values in memory and in ephemeral files.
    pub(crate) in_memory_bytes: u64,
    /// History is complete up to here in the bucket; null if the timeline is not in the bucket.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) remote_consistent_lsn: Option<Lsn>,
    /// Same as `remote_consistent_lsn`: that is only known once no other server can have taken the tenant before.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) remote_consistent_lsn_visible: Option<Lsn>,
    /// The generation under which this server writes; 0 if there never was a bucket.
    pub(crate) generation: u32,
    /// Why this server no longer writes, if it is fenced.
    pub(crate) fenced: Option<String>,
    /// Size of the resident layers in bytes.
    pub(crate) resident_bytes: u64,
    /// Size of the layers in the bucket, in bytes.
    pub(crate) in_bucket_bytes: u64,
    /// Number of layers waiting to be uploaded.
    pub(crate) upload_layers: usize,
    /// Their size in bytes.
    pub(crate) upload_bytes: u64,
    /// Why the last upload failed; null after a success.
    pub(crate) upload_error: Option<String>,
}

/// How much of what a branch inherits has become its own.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DetachProgress {
    /// Bytes of the ancestors' layers that are to be read.
    pub(crate) bytes_total: u64,
    /// Bytes of those that were read.
    pub(crate) bytes_done: u64,
    /// Pages and other values written.
    pub(crate) pages: u64,
    /// Bytes of the layers written.
    pub(crate) bytes_written: u64,
}

impl From<timeline::DetachProgress> for DetachProgress {
    fn from(progress: timeline::DetachProgress) -> Self {
        let timeline::DetachProgress { bytes_total, bytes_done, pages, bytes_written } = progress;
        Self { bytes_total, bytes_done, pages, bytes_written }
    }
}

/// What compaction has done, by kind of job.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CompactionCounts {
    /// L0 layers sorted by key.
    pub(crate) sort: JobCounts,
    /// Sorted layers merged.
    pub(crate) merge: JobCounts,
    /// Images made at the end of what is sorted.
    pub(crate) image: JobCounts,
    /// Images made at the cutoff, so that what is below them goes.
    pub(crate) fold: JobCounts,
    /// Layers below the cutoff, rewritten without what nobody may read any more.
    pub(crate) trim: JobCounts,
}

/// Jobs of one kind.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct JobCounts {
    /// Jobs that ended well.
    pub(crate) jobs: u64,
    /// Bytes of the layers that they read.
    pub(crate) bytes_in: u64,
    /// Bytes of the layers that they wrote.
    pub(crate) bytes_out: u64,
    /// Milliseconds that they took.
    pub(crate) millis: u64,
}

impl From<timeline::CompactionCounts> for CompactionCounts {
    fn from(counts: timeline::CompactionCounts) -> Self {
        let job = |counts: timeline::JobCounts| {
            let timeline::JobCounts { jobs, bytes_in, bytes_out, millis } = counts;
            JobCounts { jobs, bytes_in, bytes_out, millis }
        };
        let timeline::CompactionCounts { sort, merge, image, fold, trim } = counts;
        Self { sort: job(sort), merge: job(merge), image: job(image), fold: job(fold), trim: job(trim) }
    }
}

/// A named hold: an LSN that stays readable until the hold is deleted.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Hold {
    /// Its name.
    pub(crate) name: String,
    /// What it keeps.
    #[schema(value_type = LsnText)]
    pub(crate) lsn: Lsn,
}

/// A timeline that could not be opened. It has only these members, which distinguishes it from an open one.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BrokenTimeline {
    /// Its tenant.
    #[schema(value_type = TenantShardText)]
    pub(crate) tenant_id: TenantShardId,
    /// Its id.
    #[schema(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
    /// Why it could not be opened.
    pub(crate) state: TimelineState,
}

/// A timeline in a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum ListedTimeline {
    /// The timeline is open.
    Open(Box<TimelineInfo>),
    /// The timeline could not be opened.
    Broken(BrokenTimeline),
}

/// A branch to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TimelineCreate {
    /// A name, unique among the tenant's branches: a letter or digit, then letters, digits and `_.-`, 63 characters
    /// at most.
    #[serde(default)]
    pub(crate) name: Option<String>,
    /// Its id, chosen by the caller so that the request can be repeated.
    #[schema(value_type = TimelineText)]
    pub(crate) new_timeline_id: TimelineId,
    /// The timeline to branch off.
    #[schema(value_type = Option<TimelineText>)]
    pub(crate) ancestor_timeline_id: Option<TimelineId>,
    /// The last LSN to share; defaults to the ancestor's last record.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) ancestor_start_lsn: Option<Lsn>,
    /// Alternative to an LSN: branch at the last commit up to this time (RFC 3339, or relative to the server's clock,
    /// such as `10 minutes ago`).
    pub(crate) ancestor_start_timestamp: Option<String>,
    /// If given, must be the ancestor's.
    pub(crate) pg_version: Option<u32>,
    /// Must be false.
    #[serde(default)]
    pub(crate) read_only: bool,
    /// Have the server delete it after this time, such as `3d`: whole seconds, at least one. Without it, it stays.
    pub(crate) ttl: Option<String>,
    /// Alternative to `ttl`: when to delete it (RFC 3339).
    pub(crate) expires_at: Option<String>,
    /// Refuse to delete it.
    #[serde(default)]
    pub(crate) protected: bool,
    /// Labels: 32 at most, of 63 letters, digits and `_.-/` at most, each with a text of 255 characters at most.
    #[serde(default)]
    pub(crate) labels: BTreeMap<String, String>,
    /// Whose it is. If the caller's token names a subject, it is that one, whatever is said here.
    pub(crate) owner: Option<String>,
    /// What it is for, in 255 characters at most.
    pub(crate) reason: Option<String>,
    /// SQL to run on it before anybody uses it, after what all branches of its ancestor have.
    pub(crate) init_sql: Option<SqlBody>,
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
    /// Until when the LSN stays readable (RFC 3339).
    pub(crate) valid_until: String,
}

/// Where a time lies in a history.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LsnByTimestampAnswer {
    /// See `kind`.
    #[schema(value_type = LsnText)]
    pub(crate) lsn: Lsn,
    /// present: the last LSN up to which no commit is after the time; future: no commit is after it, the last LSN;
    /// past: all commits are after it, the first readable LSN; nodata: no commit is known, the last LSN.
    pub(crate) kind: &'static str,
    /// Until when the LSN is leased, if a lease was requested.
    pub(crate) valid_until: Option<String>,
}

/// LSNs to wait for.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WaitLsn {
    /// The LSN for each timeline.
    #[schema(value_type = BTreeMap<TimelineText, LsnText>)]
    pub(crate) timelines: BTreeMap<TimelineId, Lsn>,
    /// Maximum time to wait, such as `10s`.
    pub(crate) timeout: String,
}

/// The layers of a timeline.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LayersAnswer {
    /// Newest first.
    pub(crate) in_memory_layers: Vec<InMemoryLayer>,
    /// Layers with files.
    pub(crate) historic_layers: Vec<HistoricLayer>,
    /// Largest number of sorted delta layers above an image of the same keys.
    pub(crate) height: usize,
    /// Number of L0 layers.
    pub(crate) l0_layer_count: usize,
    /// How well they are compacted, what is owed, why nothing is done, and what keeps space from coming back.
    pub(crate) condition: Condition,
}

/// An in-memory layer.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InMemoryLayer {
    /// Open or Frozen.
    pub(crate) kind: &'static str,
    /// First LSN.
    #[schema(value_type = LsnText)]
    pub(crate) lsn_start: Lsn,
    /// End of its LSN range so far, exclusive.
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
    /// Its file name.
    pub(crate) layer_file_name: String,
    /// Its size in bytes.
    pub(crate) layer_file_size: u64,
    /// First LSN.
    #[schema(value_type = LsnText)]
    pub(crate) lsn_start: Lsn,
    /// End of its LSN range, exclusive; null for images, which are at `lsn_start`.
    #[schema(value_type = Option<LsnText>)]
    pub(crate) lsn_end: Option<Lsn>,
    /// Whether only the bucket has it; single blocks may still be cached here.
    pub(crate) remote: bool,
    /// Whether the bucket has it.
    pub(crate) in_bucket: bool,
    /// Whether it is an L0 layer, which covers all keys because it was flushed from memory.
    pub(crate) l0: bool,
    /// Whether it has a key filter, which mostly ends a search at once for a key that it does not have. Images need
    /// none.
    pub(crate) filter: bool,
    /// First key.
    pub(crate) key_start: String,
    /// End of its key range, exclusive.
    pub(crate) key_end: String,
    /// What is known of reads of it.
    pub(crate) access_stats: AccessStats,
}

/// What is known of reads of a layer, in milliseconds since 1970.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct AccessStats {
    /// When it was last read, or made or found on this disk; 0 for a layer in the bucket that was not read here.
    pub(crate) access_time: u64,
    /// The same: when a layer came to this disk is not recorded.
    pub(crate) residence_time: u64,
    /// How often it was read since the timeline was opened, plus one if it was on the local disk then or was made
    /// here.
    pub(crate) accesses: u64,
    /// Whether reads may visit it: always, as layers that none visits are removed.
    pub(crate) visible: bool,
}

/// The keys that exist.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct KeySpaceAnswer {
    /// Key ranges, end exclusive, in which every key has a value.
    pub(crate) keys: Vec<[String; 2]>,
    /// Key ranges, end exclusive, in which some keys have a value.
    pub(crate) sparse_keys: Vec<[String; 2]>,
    /// The LSN.
    #[schema(value_type = LsnText)]
    pub(crate) at_lsn: Lsn,
}

/// A server to follow.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct FollowBody {
    /// How to reach the server: `postgres://user:password@host:port` or `host=... user=...`. The user needs
    /// REPLICATION.
    pub(crate) connstr: String,
    /// The tenant to create; random by default.
    #[schema(value_type = Option<TenantText>)]
    pub(crate) tenant_id: Option<TenantId>,
    /// The timeline to create; random by default.
    #[schema(value_type = Option<TimelineText>)]
    pub(crate) timeline_id: Option<TimelineId>,
    /// Name of the replication slot; derived from the timeline's id by default.
    pub(crate) slot: Option<String>,
}

/// The tenant and timeline that will follow the server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FollowAnswer {
    /// The tenant.
    #[schema(value_type = TenantShardText)]
    pub(crate) tenant_id: TenantShardId,
    /// The timeline.
    #[schema(value_type = TimelineText)]
    pub(crate) timeline_id: TimelineId,
}

/// What a deletion leaves for others to clean up.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct DeleteAnswer {
    /// Replication slots to drop on their servers, which retain all WAL for them until then.
    pub(crate) left_slots: Vec<LeftSlot>,
}

/// The server.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct StatusAnswer {
    /// Always 1: there is only one server.
    pub(crate) id: u64,
    /// Version of the program.
    pub(crate) version: &'static str,
    /// What is called durable: what the `bucket` has (the disk, without one), or the `journal`.
    pub(crate) durability: &'static str,
    /// The name under which this server follows others as a standby, where owners are called `pageserver`:
    /// `synchronous_standby_names` may have both.
    pub(crate) standby_name: String,
    /// This server's lease: None, since it needs none; Held; or Ended: it acknowledges nothing.
    pub(crate) lease: Slug,
    /// Why the lease does not hold.
    pub(crate) lease_ended: Option<String>,
    /// Tenants of which this server is a standby.
    #[schema(value_type = Vec<TenantShardText>)]
    pub(crate) standbys: Vec<TenantShardId>,
    /// Tenants that another server has taken over.
    #[schema(value_type = Vec<TenantShardText>)]
    pub(crate) fenced_tenants: Vec<TenantShardId>,
    /// The local disk, once it has been measured.
    pub(crate) disk: Option<DiskStatus>,
}

/// The local disk.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DiskStatus {
    /// Whether incoming WAL is accepted: Open, Slow, or Refuse for lack of room.
    #[schema(value_type = String)]
    pub(crate) intake: Level,
    /// Bytes that may still be taken in; negative if the limit is exceeded.
    pub(crate) room: i64,
    /// Bytes of layers, whole and partial.
    pub(crate) resident: u64,
    /// Bytes of layers that the bucket does not have yet; included in `resident`.
    pub(crate) not_uploaded: u64,
    /// Bytes of values in in-memory layers.
    pub(crate) in_memory: u64,
    /// Free bytes on the file system.
    pub(crate) free: Option<u64>,
}

/// An abandoned replication slot: until it is dropped, its server retains all WAL.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LeftSlot {
    /// The server.
    pub(crate) host: String,
    /// The slot's name.
    pub(crate) slot: String,
}
