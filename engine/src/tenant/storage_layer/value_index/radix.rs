//! Stable order of entries by key: radix sort, least significant digit first, skipping bits that are all equal.

use super::super::memory_pool::{MemoryPool, make_room};

/// 256 concurrent write positions stay within the processor's TLB, which matters more than fewer passes.
const DIGIT_BITS: u32 = 8;
const BUCKETS: usize = 1 << DIGIT_BITS;

/// A permutation of entries.
#[derive(Debug)]
pub(super) enum Order {
    /// They are already in order.
    Identity(u32),
    /// Numbers of the entries, in order.
    Permuted(Vec<u32>),
}

impl Order {
    /// Numbers of the entries, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let (identity, permuted): (u32, &[u32]) = match self {
            Order::Identity(len) => (*len, &[]),
            Order::Permuted(order) => (0, order),
        };
        (0..identity).chain(permuted.iter().copied())
    }

    /// Number of the entry at place `at`.
    pub(super) fn number(&self, at: usize) -> u32 {
        match self {
            Order::Identity(_) => at as u32,
            Order::Permuted(order) => order[at],
        }
    }
}

/// The stable order of `keys`, of which there are `len`.
pub(super) fn order(len: usize, keys: impl Iterator<Item = u64> + Clone) -> Order {
    let count = super::entry::number(len);
    if keys.clone().is_sorted() {
        return Order::Identity(count);
    }
    let differing = differing_bits(keys.clone());
    let low_bits = u32::BITS - (differing as u32).leading_zeros();
    let high_bits = u32::BITS - ((differing >> 32) as u32).leading_zeros();
    // Relations are few, and keys of one differ only by block: usually both fit in 32 bits, half the memory.
    if high_bits + low_bits <= u32::BITS {
        let packed = |key: u64| ((key & differing) >> 32 << low_bits | (key & differing & u64::from(u32::MAX))) as u32;
        let [items, other] = ITEMS.take();
        let mut pair = [numbered(items, len, keys.map(packed)), other];
        let order = sort(&mut pair, u64::from(packed(differing)));
        ITEMS.give(pair);
        order
    } else {
        sort(&mut [numbered(Vec::new(), len, keys), Vec::new()], differing)
    }
}

/// Numbered items, twice: sorting moves them back and forth.
pub(super) static ITEMS: MemoryPool<[Vec<(u32, u32)>; 2]> = MemoryPool::new();

fn numbered<K>(mut items: Vec<(K, u32)>, len: usize, keys: impl Iterator<Item = K>) -> Vec<(K, u32)> {
    make_room(&mut items, len);
    // `for_each` iterates over each chunk in a tight loop.
    keys.for_each(|key| items.push((key, items.len() as u32)));
    items
}

fn differing_bits(keys: impl Iterator<Item = u64>) -> u64 {
    let (all, any) = keys.fold((u64::MAX, 0), |(all, any), key| (all & key, any | key));
    all ^ any
}

trait SortKey: Copy + Default {
    fn digit(self, shift: u32) -> usize;
}

impl SortKey for u32 {
    fn digit(self, shift: u32) -> usize {
        (self >> shift) as usize & (BUCKETS - 1)
    }
}

impl SortKey for u64 {
    fn digit(self, shift: u32) -> usize {
        (self >> shift) as usize & (BUCKETS - 1)
    }
}

/// The order of the first of `items`, whose keys differ only in bits of `differing`. The second one is scratch space.
fn sort<K: SortKey>(items: &mut [Vec<(K, u32)>; 2], differing: u64) -> Order {
    let [items, other] = items;
    if other.len() < items.len() {
        make_room(other, items.len());
    }
    other.resize(items.len(), (K::default(), 0));
    let mut shift = differing.trailing_zeros();
    while differing.checked_shr(shift).is_some_and(|rest| rest != 0) {
        pass(items, other, shift);
        std::mem::swap(items, other);
        shift += DIGIT_BITS;
        // Skip bits in which no keys differ.
        shift += differing.checked_shr(shift).map_or(0, |rest| if rest == 0 { 0 } else { rest.trailing_zeros() });
    }
    Order::Permuted(items.iter().map(|(_, at)| *at).collect())
}

fn pass<K: SortKey>(from: &[(K, u32)], to: &mut [(K, u32)], shift: u32) {
    let mut places = [0u32; BUCKETS];
    from.iter().for_each(|(key, _)| places[key.digit(shift)] += 1);
    let mut next = 0;
    for place in &mut places {
        (*place, next) = (next, next + *place);
    }
    for item in from {
        let place = &mut places[item.0.digit(shift)];
        to[*place as usize] = *item;
        *place += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn orders_like_a_stable_sort(mut keys in prop::collection::vec(any::<u64>(), 0..300), mask: u64, narrow: bool) {
            let mask = if narrow { mask & 0xFF00_0F03 } else { mask };
            keys.iter_mut().for_each(|key| *key &= mask);
            let mut expected: Vec<u32> = (0..keys.len() as u32).collect();
            expected.sort_by_key(|at| keys[*at as usize]);
            prop_assert_eq!(order(keys.len(), keys.iter().copied()).iter().collect::<Vec<_>>(), expected);
        }
    }
}
