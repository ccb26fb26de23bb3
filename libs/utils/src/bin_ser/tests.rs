use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use super::{BeSer, LeSer};

#[derive(Debug, PartialEq, Clone, Serialize, Deserialize)]
enum Shape {
    Unit,
    Newtype(bytes::Bytes),
    Tuple(u8, i64),
    Struct { flag: bool, name: String },
}

#[derive(Debug, PartialEq, Clone, Serialize, Deserialize)]
struct Everything {
    a: u8,
    b: u16,
    c: u32,
    d: u64,
    e: i32,
    f: f64,
    shapes: Vec<Shape>,
    map: BTreeMap<(u32, u32), bool>,
    option: Option<u32>,
    id: [u8; 4],
}

fn shape() -> impl Strategy<Value = Shape> {
    prop_oneof![
        Just(Shape::Unit),
        any::<Vec<u8>>().prop_map(|v| Shape::Newtype(v.into())),
        any::<(u8, i64)>().prop_map(|(a, b)| Shape::Tuple(a, b)),
        any::<(bool, String)>().prop_map(|(flag, name)| Shape::Struct { flag, name }),
    ]
}

prop_compose! {
    fn everything()(
        (a, b, c, d, e) in any::<(u8, u16, u32, u64, i32)>(),
        f in -1e9..1e9f64,
        shapes in prop::collection::vec(shape(), 0..4),
        map in any::<BTreeMap<(u32, u32), bool>>(),
        option in any::<Option<u32>>(),
        id in any::<[u8; 4]>(),
    ) -> Everything {
        Everything { a, b, c, d, e, f, shapes, map, option, id }
    }
}

#[test]
fn fixed_layout() {
    let value = (1u16, Some(2u32), vec![3u8]);
    assert_eq!(BeSer::ser(&value).unwrap(), [0, 1, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 1, 3]);
    assert_eq!(LeSer::ser(&value).unwrap(), [1, 0, 1, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 3]);
    assert_eq!(
        BeSer::ser(&Shape::Newtype(bytes::Bytes::from_static(b"x"))).unwrap(),
        [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, b'x']
    );
}

#[test]
fn huge_lengths_fail_without_allocating() {
    let mut bytes = vec![0xFF; 8];
    bytes.push(1);
    assert!(<Vec<u8> as BeSer>::des(&bytes).is_err());
    assert!(<String as BeSer>::des(&bytes).is_err());
    assert!(<Vec<u64> as BeSer>::des(&bytes).is_err());
}

proptest! {
    #[test]
    fn round_trip(value in everything()) {
        let big = BeSer::ser(&value).unwrap();
        prop_assert_eq!(big.len() as u64, BeSer::serialized_size(&value).unwrap());
        prop_assert_eq!(&<Everything as BeSer>::des(&big).unwrap(), &value);
        let little = LeSer::ser(&value).unwrap();
        prop_assert_eq!(&<Everything as LeSer>::des_from(&mut &little[..]).unwrap(), &value);
        let mut long = big.clone();
        long.push(0);
        prop_assert!(<Everything as BeSer>::des(&long).is_err());
        prop_assert!(<Everything as BeSer>::des(&big[..big.len() - 1]).is_err());
    }

    #[test]
    fn damaged_input_never_panics(bytes: Vec<u8>) {
        let _ = <Everything as BeSer>::des(&bytes);
        let _ = <Everything as LeSer>::des(&bytes);
    }
}
