use proptest::prelude::*;

use super::*;

fn push_all(values: &[(i128, u64)]) -> ValueIndex {
    let mut index = ValueIndex::default();
    for (at, (key, lsn)) in values.iter().enumerate() {
        index.push(CompactKey::from(*key), Lsn(*lsn), at as u64 * 10, 7, at % 3 == 0);
    }
    index
}

/// What the index must answer: the last of equal (key, LSN) pairs, in order.
fn model(values: &[(i128, u64)]) -> Vec<(i128, u64, u64)> {
    let map: std::collections::BTreeMap<_, _> =
        values.iter().enumerate().map(|(at, (key, lsn))| ((*key, *lsn), at as u64 * 10)).collect();
    map.into_iter().map(|((key, lsn), position)| (key, lsn, position)).collect()
}

fn flat(version: &Version) -> (i128, u64, u64) {
    (version.key.to_i128(), version.lsn.0, version.extent.position)
}

fn values(max: usize) -> impl Strategy<Value = Vec<(i128, u64)>> {
    let key = prop_oneof![0i128..40, (0i128..4).prop_map(|n| n << 40), (0i128..3).prop_map(|n| (n << 100) + 5)];
    prop::collection::vec((key, any::<bool>()), 1..max).prop_map(|keys| {
        let mut lsn = 8;
        keys.into_iter()
            .map(|(key, step)| {
                lsn += u64::from(step);
                (key, lsn)
            })
            .collect()
    })
}

proptest! {
    #[test]
    fn sorted_and_ranges_agree_with_a_map(values in values(300), first in 0i128..50, len in 0i128..50) {
        let index = push_all(&values);
        let expected = model(&values);
        prop_assert_eq!(index.sorted().iter().map(|v| flat(&v)).collect::<Vec<_>>(), expected.clone());
        let found = index.range(CompactKey::from(first), CompactKey::from(first + len));
        let wanted: Vec<_> = expected.into_iter().filter(|(key, ..)| (first..=first + len).contains(key)).collect();
        prop_assert_eq!(found.iter().map(flat).collect::<Vec<_>>(), wanted);
    }

    #[test]
    fn what_a_read_needs_of_a_key(values in values(300), at in 0usize..300, end in 0u64..400) {
        let index = push_all(&values);
        let key = CompactKey::from(values[at % values.len()].0);
        let mut versions = index.range(key, key);
        versions.retain(|version| version.lsn.0 < end);
        let first = versions.iter().rposition(|version| version.will_init).unwrap_or(0);
        let wanted: Vec<_> = versions[first..].iter().rev().map(flat).collect();
        let found = index.needed(key, Lsn(end));
        prop_assert_eq!(found.iter().map(flat).collect::<Vec<_>>(), wanted);
    }
}

#[test]
fn runs_over_many_chunks() {
    let mut index = ValueIndex::default();
    let count = 100_000u32;
    for i in 0..count {
        index.push(CompactKey::from(i128::from(i.wrapping_mul(2_654_435_761) % 5000)), Lsn(u64::from(i)), 0, 1, true);
        if i % 30_011 == 0 {
            assert!(index.range(CompactKey::from(0), CompactKey::from(1)).is_sorted_by_key(|v| (v.key, v.lsn)));
        }
    }
    let key = CompactKey::from(77);
    let expected: Vec<u64> = (0..count).filter(|i| i.wrapping_mul(2_654_435_761) % 5000 == 77).map(u64::from).collect();
    assert_eq!(index.range(key, key).iter().map(|v| v.lsn.0).collect::<Vec<_>>(), expected);
    assert_eq!(index.needed(key, Lsn(500)).iter().map(|v| v.lsn.0).collect::<Vec<_>>(), {
        let below = expected.iter().rev().find(|lsn| **lsn < 500);
        below.into_iter().copied().collect::<Vec<_>>()
    });
    assert_eq!(index.sorted().iter().filter(|v| v.key == key).map(|v| v.lsn.0).collect::<Vec<_>>(), expected);
    assert_eq!(index.len(), count as usize);
    assert!(index.memory() <= 40 * count as usize, "{} bytes for {count} values", index.memory());
}

/// Wherever the entries end that runs cover.
#[test]
fn reads_beside_what_comes() {
    for stride in [1, 7, 500, 513, 4_099, 20_000] {
        let (mut index, mut lsns) = (ValueIndex::default(), [const { Vec::new() }; 7]);
        for i in 0..20_000u32 {
            let key = (i.wrapping_mul(2_654_435_761) >> 7) % 7;
            index.push(CompactKey::from(i128::from(key)), Lsn(u64::from(i)), 0, 1, i % 5 == 0);
            lsns[key as usize].push(u64::from(i));
            if i % stride == stride - 1 {
                let wanted = i as usize % 7;
                let first = lsns[wanted].iter().rposition(|lsn| lsn % 5 == 0).unwrap_or(0);
                let expected: Vec<u64> = lsns[wanted].iter().skip(first).rev().copied().collect();
                let found = index.needed(CompactKey::from(wanted as i128), Lsn::MAX);
                assert_eq!(found.iter().map(|v| v.lsn.0).collect::<Vec<_>>(), expected, "{i}, every {stride}");
            }
        }
        for (key, lsns) in lsns.iter().enumerate() {
            let key = CompactKey::from(key as i128);
            assert_eq!(index.range(key, key).iter().map(|v| v.lsn.0).collect::<Vec<_>>(), *lsns);
        }
    }
}

#[test]
fn places_are_packed_without_loss() {
    let mut index = ValueIndex::default();
    let key = CompactKey::from(3);
    index.push(key, Lsn(1), POSITION_MAX, VALUE_LEN_MAX as u32, true);
    index.push(key, Lsn(2), 0, 0, false);
    let found = index.range(key, key);
    assert_eq!((found[0].extent.position, found[0].extent.len as usize), (POSITION_MAX, VALUE_LEN_MAX));
    assert_eq!((found[0].will_init, found[1].will_init), (true, false));
}
