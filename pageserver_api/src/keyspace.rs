//! Sets of keys as ordered, disjoint ranges.

use std::ops::Range;

use crate::key::Key;

/// A set of keys: ascending ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySpace {
    ranges: Vec<Range<Key>>,
}

impl KeySpace {
    /// The set that consists of one range.
    pub fn single(range: Range<Key>) -> Self {
        Self::from_ranges(vec![range])
    }

    /// The union of `ranges`, which may overlap and come in any order.
    pub fn from_ranges(mut ranges: Vec<Range<Key>>) -> Self {
        ranges.retain(|range| range.start < range.end);
        ranges.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<Key>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }

    /// The ranges, ascending and disjoint.
    pub fn ranges(&self) -> &[Range<Key>] {
        &self.ranges
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether `key` is in the set.
    pub fn contains(&self, key: &Key) -> bool {
        let after = self.ranges.partition_point(|range| range.start <= *key);
        after.checked_sub(1).and_then(|at| self.ranges.get(at)).is_some_and(|range| *key < range.end)
    }

    /// Whether any key of `range` is in the set.
    pub fn overlaps(&self, range: &Range<Key>) -> bool {
        let first = self.ranges.partition_point(|own| own.end <= range.start);
        range.start < range.end && self.ranges.get(first).is_some_and(|own| own.start < range.end)
    }

    /// The keys that are both in `self` and in `range`.
    pub fn intersect(&self, range: &Range<Key>) -> KeySpace {
        let cut = |own: &Range<Key>| own.start.max(range.start)..own.end.min(range.end);
        Self { ranges: self.ranges.iter().map(cut).filter(|cut| cut.start < cut.end).collect() }
    }

    /// Removes the keys of `other`.
    pub fn subtract(&mut self, other: &KeySpace) {
        let mut left = Vec::with_capacity(self.ranges.len());
        for own in &self.ranges {
            let mut start = own.start;
            let first = other.ranges.partition_point(|hole| hole.end <= own.start);
            for hole in other.ranges.iter().skip(first).take_while(|hole| hole.start < own.end) {
                left.push(start..hole.start);
                start = start.max(hole.end);
            }
            left.push(start..own.end);
        }
        left.retain(|range| range.start < range.end);
        self.ranges = left;
    }
}

/// Builds a key space from keys and ranges that arrive in any order.
#[derive(Clone, Debug, Default)]
pub struct KeySpaceBuilder {
    ranges: Vec<Range<Key>>,
}

impl KeySpaceBuilder {
    /// Adds one key.
    pub fn add_key(&mut self, key: Key) {
        self.add_range(key..key.next());
    }

    /// Adds a range. A range that starts where the last one ended extends it.
    pub fn add_range(&mut self, range: Range<Key>) {
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.ranges.push(range),
        }
    }

    /// The set of everything that was added.
    pub fn build(self) -> KeySpace {
        KeySpace::from_ranges(self.ranges)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn key(n: u32) -> Key {
        Key { field6: n, ..Key::MIN }
    }

    fn ranges() -> impl Strategy<Value = Vec<Range<Key>>> {
        prop::collection::vec((0u32..60, 0u32..10).prop_map(|(start, len)| key(start)..key(start + len)), 0..8)
    }

    fn members(ranges: &[Range<Key>]) -> BTreeSet<u32> {
        ranges.iter().flat_map(|range| range.start.field6..range.end.field6).collect()
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(a in ranges(), b in ranges()) {
            let (set_a, set_b) = (members(&a), members(&b));
            let space_a = KeySpace::from_ranges(a);
            let space_b = KeySpace::from_ranges(b);
            prop_assert_eq!(&members(space_a.ranges()), &set_a);
            for pair in space_a.ranges().windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
            for n in 0..80 {
                prop_assert_eq!(space_a.contains(&key(n)), set_a.contains(&n));
            }
            let mut difference = space_a.clone();
            difference.subtract(&space_b);
            prop_assert_eq!(members(difference.ranges()), &set_a - &set_b);
            for range in space_b.ranges() {
                let both = space_a.intersect(range);
                prop_assert_eq!(space_a.overlaps(range), !both.is_empty());
                prop_assert_eq!(members(both.ranges()), &set_a & &members(std::slice::from_ref(range)));
            }
        }
    }
}
