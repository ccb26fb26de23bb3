//! What is known of a layer file without opening it.

use std::ops::Range;

use pageserver_api::key::Key;
use pageserver_api::shard::TenantShardId;
use serde::{Deserialize, Serialize};
use utils::id::TimelineId;
use utils::lsn::Lsn;

use super::LayerName;

/// Distinguishes a layer's file from any other, and allows opening it without its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerIdentity {
    /// Drawn at random when the file was created; part of the checksum of each of its blocks.
    pub file_id: u64,
    /// Byte offset of the index. Opening the file takes the bytes from here to its end.
    pub tail_offset: u64,
    /// Number of blocks of its key filter.
    pub filter_blocks: u32,
}

/// A layer file's owner, and what it covers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PersistentLayerDesc {
    /// The tenant shard that wrote it.
    pub tenant_shard_id: TenantShardId,
    /// The timeline that wrote it.
    pub timeline_id: TimelineId,
    /// Keys covered. The end is exclusive.
    pub key_range: Range<Key>,
    /// LSNs covered, end exclusive. An image layer covers one LSN.
    pub lsn_range: Range<Lsn>,
    /// Whether it is a delta layer; otherwise it is an image layer.
    pub is_delta: bool,
    /// Size of the file in bytes.
    pub file_size: u64,
}

impl PersistentLayerDesc {
    /// A delta layer.
    pub fn new_delta(
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
        key_range: Range<Key>,
        lsn_range: Range<Lsn>,
        file_size: u64,
    ) -> Self {
        Self { tenant_shard_id, timeline_id, key_range, lsn_range, is_delta: true, file_size }
    }

    /// An image layer at `lsn`.
    pub fn new_image(
        tenant_shard_id: TenantShardId,
        timeline_id: TimelineId,
        key_range: Range<Key>,
        lsn: Lsn,
        file_size: u64,
    ) -> Self {
        let lsn_range = lsn..lsn + 1;
        Self { tenant_shard_id, timeline_id, key_range, lsn_range, is_delta: false, file_size }
    }

    /// The LSN of an image layer.
    pub fn image_lsn(&self) -> Lsn {
        debug_assert!(!self.is_delta);
        self.lsn_range.start
    }

    /// Whether this is an L0 layer: a delta layer over all keys, as flushes write them.
    pub fn is_l0(&self) -> bool {
        self.is_delta && self.key_range == (Key::MIN..Key::MAX)
    }

    /// The file's name.
    pub fn layer_name(&self) -> LayerName {
        if self.is_delta {
            LayerName::Delta { key_range: self.key_range.clone(), lsn_range: self.lsn_range.clone() }
        } else {
            LayerName::Image { key_range: self.key_range.clone(), lsn: self.lsn_range.start }
        }
    }
}
