//! Stable order of entries by key: least significant digit first, skipping digits that are all equal.

/// 256 places to write to at a time stay within the processor's address cache, which matters more than fewer passes.
const DIGIT_BITS: u32 = 8;
const BUCKETS: usize = 1 << DIGIT_BITS;

/// A permutation of entries.
#[derive(Debug)]
pub(in super::super) enum Order {
    /// They are in order already.
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
}

/// The stable order of `keys`.
pub(super) fn order(keys: impl ExactSizeIterator<Item = u64> + Clone) -> Order {
    let len = u32::try_from(keys.len()).expect("fewer than 2^32 values in a layer");
    if keys.clone().is_sorted() {
        return Order::Identity(len);
    }
    let differing = differing_bits(keys.clone());
    // Keys of one relation differ in 32 bits only: half the memory to move.
    if differing <= u64::from(u32::MAX) {
        sort(keys.zip(0..).map(|(key, at)| (key as u32, at)).collect(), differing)
    } else {
        sort(keys.zip(0..).collect(), differing)
    }
}

fn differing_bits(keys: impl Iterator<Item = u64> + Clone) -> u64 {
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

fn sort<K: SortKey>(mut items: Vec<(K, u32)>, differing: u64) -> Order {
    let mut other = vec![(K::default(), 0); items.len()];
    let mut shift = differing.trailing_zeros();
    while differing.checked_shr(shift).is_some_and(|rest| rest != 0) {
        pass(&items, &mut other, shift);
        std::mem::swap(&mut items, &mut other);
        shift += DIGIT_BITS;
        // Skip bits in which no keys differ.
        shift += differing.checked_shr(shift).map_or(0, |rest| if rest == 0 { 0 } else { rest.trailing_zeros() });
    }
    Order::Permuted(items.into_iter().map(|(_, at)| at).collect())
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
            prop_assert_eq!(order(keys.iter().copied()).iter().collect::<Vec<_>>(), expected);
        }
    }
}
