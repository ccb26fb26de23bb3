//! Which shard of a tenant owns a key.

use serde::{Deserialize, Serialize};
pub use utils::shard::{ShardCount, ShardNumber, TenantShardId};

use crate::key::Key;
use crate::reltag::INIT_FORK;

/// Default stripe size in 8 KiB blocks.
pub const DEFAULT_STRIPE_SIZE: ShardStripeSize = ShardStripeSize(2048);

/// Number of consecutive blocks, of 8 KiB, that stay on one shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardStripeSize(pub u32);

/// A shard, and everything that decides which keys it owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ShardIdentity {
    /// This shard's number.
    pub number: ShardNumber,
    /// Number of shards of the tenant.
    pub count: ShardCount,
    /// Stripe size in blocks.
    pub stripe_size: ShardStripeSize,
}

impl ShardIdentity {
    /// The only shard of an unsharded tenant.
    pub const fn unsharded() -> Self {
        Self { number: ShardNumber(0), count: ShardCount(0), stripe_size: DEFAULT_STRIPE_SIZE }
    }

    /// The shard that owns `key`. Shard 0 owns all keys that are not relation blocks, and init forks.
    pub fn shard_of(&self, key: &Key) -> ShardNumber {
        let count = u32::from(self.count.0);
        match key.to_rel_block() {
            Some((rel, blkno)) if count >= 2 && rel.forknum != INIT_FORK => {
                let hash = combine(murmur32(rel.relnode), murmur32(blkno / self.stripe_size.0.max(1)));
                ShardNumber((hash % count) as u8)
            }
            _ => ShardNumber(0),
        }
    }

    /// Whether this shard owns `key`.
    pub fn is_key_local(&self, key: &Key) -> bool {
        self.shard_of(key) == self.number
    }
}

/// The 32-bit finalizer of MurmurHash3.
fn murmur32(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

fn combine(a: u32, b: u32) -> u32 {
    a ^ b.wrapping_add(0x9e37_79b9).wrapping_add(a << 6).wrapping_add(a >> 2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::rel_block_key;
    use crate::reltag::RelTag;

    #[test]
    fn published_vectors() {
        assert_eq!(murmur32(0), 0);
        assert_eq!(combine(0xb1ff_3b40, 0), 0xfb79_23c9);
        let identity =
            ShardIdentity { number: ShardNumber(8), count: ShardCount(10), stripe_size: ShardStripeSize(32768) };
        let rel = RelTag { spcnode: 0x67f, dbnode: 5, relnode: 0x400c, forknum: 0 };
        let key = rel_block_key(rel, 0x7d06);
        assert_eq!(identity.shard_of(&key), ShardNumber(8));
        assert!(identity.is_key_local(&key) && !ShardIdentity::unsharded().shard_of(&key).0 > 0);
        assert_eq!(identity.shard_of(&rel_block_key(rel.with_fork(INIT_FORK), 0x7d06)), ShardNumber(0));
    }
}
