//! The lists of layers in the bucket: copies of index parts, one for each edition.
//!
//! Layers that were merged no longer tell by their names which of them belong together, so a lost index part could not
//! be rebuilt from them alone. Therefore its owner copies an index part whenever layers were replaced or removed,
//! before the objects of those layers go. What is flushed later adjoins what the list has. The edition is in the
//! name, so that an index part that somebody has put back is known from a listing.

use pageserver_api::shard::TenantShardId;
use utils::id::TimelineId;

use crate::tenant::timeline::manifest::Manifest;
use remote_storage::{LAYER_LIST_PREFIX, RemotePath};

/// Who wrote a list of layers, of which edition. Later ones are greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct LayerList {
    /// The generation that wrote it.
    pub(crate) generation: u32,
    /// The edition of the timeline's layers that it names.
    pub(crate) edition: u64,
}

impl LayerList {
    /// The list that belongs to an index part, if it needs one: without editions, layers are known by their names.
    pub(crate) fn of(index: &Manifest) -> Option<Self> {
        (index.edition > 0).then_some(Self { generation: index.generation, edition: index.edition })
    }

    /// Parses an object's file name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (generation, edition) = name.strip_prefix(LAYER_LIST_PREFIX)?.split_once('-')?;
        let list = Self {
            generation: u32::from_str_radix(generation, 16).ok()?,
            edition: u64::from_str_radix(edition, 16).ok()?,
        };
        (list.file_name() == name).then_some(list)
    }

    /// The file name of the object.
    pub(crate) fn file_name(self) -> String {
        format!("{LAYER_LIST_PREFIX}{:08x}-{:016x}", self.generation, self.edition)
    }

    /// Where it is.
    pub(crate) fn path(self, tenant: &TenantShardId, timeline: &TimelineId) -> RemotePath {
        RemotePath::layer(tenant, timeline, &self.file_name())
    }

    /// Whether an index part is older than this list, which was copied from a later one of the same owner.
    pub(crate) fn is_later_than(self, index: &Manifest) -> bool {
        self.generation == index.generation && self.edition > index.edition
    }
}

/// What an index part could be rebuilt from, besides layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spare {
    /// The bucket has the timeline's origin. It is written after the first index part, so if it exists without one, an
    /// index part was lost.
    pub(crate) has_origin: bool,
    /// Lists of layers.
    pub(crate) lists: Vec<LayerList>,
}

impl Spare {
    /// Whether there is anything, so that there was an index part.
    pub(crate) fn is_there(&self) -> bool {
        self.has_origin || !self.lists.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_generation_and_edition() {
        let list = LayerList { generation: 0x1f, edition: 0xab };
        assert_eq!(list.file_name(), "layers-0000001f-00000000000000ab");
        assert_eq!(LayerList::parse(&list.file_name()), Some(list));
        for bad in ["layers-0000001f", "layers-1f-ab", "layers-0000001f-00000000000000AB", "origin-0000001f"] {
            assert_eq!(LayerList::parse(bad), None, "{bad}");
        }
        assert!(list < LayerList { generation: 0x20, edition: 1 }, "a later owner knows all of what was before");
    }
}
