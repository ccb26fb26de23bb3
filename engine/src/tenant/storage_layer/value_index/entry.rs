//! One value as the index stores it, and one version as it returns it.

use pageserver_api::key::CompactKey;
use utils::lsn::Lsn;

use super::super::block_source::Extent;

/// Low bits of a key that are stored with each entry; the rest (relation and fork) is stored once per layer.
pub(super) const LOW_BITS: u32 = 32;
pub(super) const INIT_BIT: u64 = 1;
pub(super) const LEN_BITS: u32 = 28;
/// Longest value in bytes.
pub(in super::super) const VALUE_LEN_MAX: usize = (1 << LEN_BITS) - 1;
/// Largest position of a value, in bytes: just below 2^35.
pub(in super::super) const POSITION_MAX: u64 = (1 << (63 - LEN_BITS)) - 1;

/// One value: 24 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Entry {
    /// Number of the key's prefix in the layer's table, and the key's low 32 bits.
    pub(super) key: u64,
    pub(super) lsn: u64,
    /// Position, length and `will_init`, packed.
    pub(super) place: u64,
}

impl Entry {
    pub(super) fn place_of(position: u64, len: u32, will_init: bool) -> u64 {
        position << (LEN_BITS + 1) | u64::from(len) << 1 | u64::from(will_init)
    }

    pub(super) fn extent(&self) -> Extent {
        Extent { position: self.place >> (LEN_BITS + 1), len: (self.place >> 1) as u32 & ((1 << LEN_BITS) - 1) }
    }

    pub(super) fn will_init(&self) -> bool {
        self.place & INIT_BIT == 1
    }

    pub(super) fn version(&self, key: CompactKey) -> Version {
        Version { key, lsn: Lsn(self.lsn), extent: self.extent(), will_init: self.will_init() }
    }
}

/// One version of one key, as the index returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Version {
    pub(in super::super) key: CompactKey,
    pub(in super::super) lsn: Lsn,
    pub(in super::super) extent: Extent,
    pub(in super::super) will_init: bool,
}

/// A layer's values, and its relations, are numbered with 32 bits.
pub(super) fn number(len: usize) -> u32 {
    u32::try_from(len).expect("fewer than 2^32 values in a layer")
}

/// The key that is `packed` with the number of its prefix in `prefixes`.
pub(super) fn key_of(prefixes: &[i128], packed: u64) -> CompactKey {
    let prefix = prefixes.get((packed >> LOW_BITS) as usize).copied().unwrap_or_default();
    CompactKey::from(prefix << LOW_BITS | i128::from(packed as u32))
}
