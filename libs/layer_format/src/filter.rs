//! Key filters of delta layers: a Bloom filter in checked blocks, which says for most keys that are not in the layer
//! that they are not, at the cost of reading one block.
//!
//! A key belongs to one block of the filter and sets [`PROBES`] bits in its payload, so a probe reads one block however
//! many keys the layer has. With [`BITS_PER_KEY`] bits for each key, about one absent key in a hundred passes.

use pageserver_api::key::CompactKey;

use crate::block::BLOCK_PAYLOAD;

/// Bits of the filter for each distinct key.
pub const BITS_PER_KEY: usize = 10;
/// Bits that a key sets.
pub const PROBES: u32 = 7;

const BLOCK_BITS: u64 = BLOCK_PAYLOAD as u64 * 8;
const KEYS_PER_BLOCK: usize = BLOCK_PAYLOAD * 8 / BITS_PER_KEY;

/// A key as the filter sees it. The function is part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHash(u64);

impl KeyHash {
    /// The hash of `key`.
    pub fn of(key: CompactKey) -> Self {
        let bits = key.to_i128() as u128;
        Self(mix(mix(bits as u64 ^ 0x9e37_79b9_7f4a_7c15) ^ (bits >> 64) as u64))
    }

    /// The block of a filter of `blocks` blocks that the key belongs to.
    pub fn block(self, blocks: u32) -> u32 {
        ((u128::from(self.0) * u128::from(blocks)) >> 64) as u32
    }

    /// The bits of its block that the key sets.
    fn bits(self) -> impl Iterator<Item = usize> {
        // Independent of the block, which the upper bits of the hash have chosen.
        let other = mix(self.0 ^ 0xd1b5_4a32_d192_ed03);
        let (first, step) = (other as u32, (other >> 32) as u32 | 1);
        (0..PROBES).map(move |n| {
            let at = first.wrapping_add(n.wrapping_mul(step));
            ((u64::from(at) * BLOCK_BITS) >> 32) as usize
        })
    }
}

/// The finalizer of MurmurHash3, which is in the public domain: every bit of the result depends on every bit of `x`.
fn mix(mut x: u64) -> u64 {
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    x ^ (x >> 33)
}

/// Whether the layer may have a key with this hash; `payload` is that of the key's block of the filter.
pub fn may_contain(payload: &[u8], hash: KeyHash) -> bool {
    hash.bits().all(|bit| payload.get(bit / 8).is_none_or(|byte| byte & (1 << (bit % 8)) != 0))
}

/// Collects the keys of a layer.
#[derive(Debug, Default)]
pub struct FilterBuilder {
    last: Option<CompactKey>,
    hashes: Vec<KeyHash>,
}

impl FilterBuilder {
    /// Adds a key. Equal ones that follow each other count once.
    pub fn push(&mut self, key: CompactKey) {
        if self.last.replace(key) != Some(key) {
            self.hashes.push(KeyHash::of(key));
        }
    }

    /// Number of keys so far.
    pub fn keys(&self) -> usize {
        self.hashes.len()
    }

    /// The payloads of the filter's blocks, one after the other; empty without keys.
    pub fn finish(self) -> Vec<u8> {
        let blocks = self.hashes.len().div_ceil(KEYS_PER_BLOCK);
        let mut out = vec![0; blocks * BLOCK_PAYLOAD];
        for hash in self.hashes {
            let start = hash.block(blocks as u32) as usize * BLOCK_PAYLOAD;
            for bit in hash.bits() {
                if let Some(byte) = out.get_mut(start + bit / 8) {
                    *byte |= 1 << (bit % 8);
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn contains(filter: &[u8], key: CompactKey) -> bool {
        let (hash, blocks) = (KeyHash::of(key), (filter.len() / BLOCK_PAYLOAD) as u32);
        let start = hash.block(blocks) as usize * BLOCK_PAYLOAD;
        may_contain(&filter[start..start + BLOCK_PAYLOAD], hash)
    }

    fn filter_of(keys: impl IntoIterator<Item = i128>) -> Vec<u8> {
        let mut builder = FilterBuilder::default();
        keys.into_iter().for_each(|key| builder.push(CompactKey::from(key)));
        builder.finish()
    }

    proptest! {
        #[test]
        fn no_key_of_the_layer_is_missed(keys in prop::collection::vec(any::<i128>(), 1..5_000)) {
            let filter = filter_of(keys.iter().copied());
            for key in keys {
                prop_assert!(contains(&filter, CompactKey::from(key)));
            }
        }
    }

    #[test]
    fn neighboring_blocks_of_relations_are_told_apart() {
        // Keys of a relation's blocks differ in their lowest bits only.
        let base = 0x0006_7f00_0000_4000_0000_0000_0000_i128;
        for keys in [100, KEYS_PER_BLOCK, 10 * KEYS_PER_BLOCK, 100_000] {
            let present: HashSet<i128> = (0..keys as i128).map(|n| base + 3 * n).collect();
            let filter = filter_of(present.iter().copied());
            assert_eq!(filter.len(), keys.div_ceil(KEYS_PER_BLOCK) * BLOCK_PAYLOAD);
            let absent = (0..200_000_i128).map(|n| base + n).filter(|key| !present.contains(key));
            let (mut tried, mut passed) = (0_u32, 0_u32);
            for key in absent {
                (tried, passed) = (tried + 1, passed + u32::from(contains(&filter, CompactKey::from(key))));
            }
            let share = f64::from(passed) / f64::from(tried);
            assert!(share < 0.015, "{keys} keys: {passed} of {tried} absent ones pass");
        }
    }

    #[test]
    fn the_hash_is_part_of_the_format() {
        let hashes = [0, 1, -1, i128::MAX].map(|key| KeyHash::of(CompactKey::from(key)));
        assert_eq!(hashes.map(|hash| hash.0), FIXED);
        assert!(filter_of([]).is_empty());
    }

    const FIXED: [u64; 4] =
        [0x6393_d51c_06c6_18dc, 0x3a3c_7f8a_d167_625a, 0xa055_e88e_d5c9_0f86, 0x200d_e7a2_389e_8bce];
}
