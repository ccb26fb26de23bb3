use proptest::prelude::*;

use super::*;
use crate::reltag::{RelTag, SlruKind};

prop_compose! {
    pub(crate) fn any_key()(
        field1 in any::<u8>(), field2 in any::<u32>(), field3 in any::<u32>(),
        field4 in any::<u32>(), field5 in any::<u8>(), field6 in any::<u32>(),
    ) -> Key {
        Key { field1, field2, field3, field4, field5, field6 }
    }
}

prop_compose! {
    fn compactable_key()(key in any_key()) -> Key {
        Key { field1: key.field1 & 0x7F, field2: key.field2 & 0xFFFF, ..key }
    }
}

proptest! {
    #[test]
    fn byte_order_is_key_order(a in any_key(), b in any_key()) {
        prop_assert_eq!(a.cmp(&b), a.to_bytes().cmp(&b.to_bytes()));
        prop_assert_eq!(Key::from_bytes(&a.to_bytes()), a);
        prop_assert_eq!(a.to_string().parse::<Key>().unwrap(), a);
    }

    #[test]
    fn compact_order_is_key_order(a in compactable_key(), b in compactable_key()) {
        prop_assert!(a.is_compactable());
        prop_assert_eq!(a.cmp(&b), a.to_compact().cmp(&b.to_compact()));
        prop_assert_eq!(Key::from_compact(a.to_compact()), a);
    }

    #[test]
    fn next_is_the_least_larger_key(key in any_key()) {
        prop_assume!(key != Key::MAX);
        prop_assert!(key.next() > key);
        let bytes = u128::from_be_bytes(key.to_bytes()[2..].try_into().unwrap());
        let next = u128::from_be_bytes(key.next().to_bytes()[2..].try_into().unwrap());
        prop_assert_eq!(next, bytes.wrapping_add(1));
    }

    #[test]
    fn block_keys_round_trip(spcnode: u32, dbnode: u32, relnode in 1..u32::MAX, forknum in 0u8..4, blk in 0..u32::MAX) {
        let rel = RelTag { spcnode, dbnode, relnode, forknum };
        prop_assert_eq!(rel_block_key(rel, blk).to_rel_block(), Some((rel, blk)));
        prop_assert_eq!(rel_size_key(rel).to_rel_size(), Some(rel));
        prop_assert!(rel_key_range(rel).contains(&rel_size_key(rel)));
    }
}

#[test]
fn carries_run_through_all_fields() {
    assert_eq!(Key::MAX.next(), Key::MAX);
    let key =
        Key { field1: 1, field2: u32::MAX, field3: u32::MAX, field4: u32::MAX, field5: u8::MAX, field6: u32::MAX };
    assert_eq!(key.next(), Key { field1: 2, ..Key::MIN });
    assert_eq!(Key::MIN.add(5).field6, 5);
}

#[test]
fn slru_keys() {
    let key = slru_block_key(SlruKind::Clog, 7, 31);
    assert_eq!(key.to_slru_block(), Some((SlruKind::Clog, 7, 31)));
    assert_eq!(slru_segment_size_key(SlruKind::Clog, 7).to_slru_block(), None);
}
