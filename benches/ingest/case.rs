//! The cases: which values arrive, in which order, and how.

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::models::virtual_file::IoMode;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

pub const VOLUME_MIB: usize = 128;
/// Where the values begin.
pub const START: Lsn = Lsn(1000);
const PAGE: usize = 8192;

/// One of this many WAL-shaped values is a page's image.
const IMAGE_EVERY: u32 = 30;
/// Half of the changes go to this many hot pages, the others to this many cold ones, in scattered order.
pub const HOT: u32 = 1 << 10;
pub const COLD: u32 = 1 << 16;

/// The 32-bit finalizer of MurmurHash3: a bijection, so that random keys are distinct.
fn murmur32(mut h: u32) -> u32 {
    h ^= h >> 16;
    h = h.wrapping_mul(0x85eb_ca6b);
    h ^= h >> 13;
    h = h.wrapping_mul(0xc2b2_ae35);
    h ^ (h >> 16)
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyLayout {
    /// Ascending keys, as a bulk load writes them.
    Sequential,
    /// Distinct keys in random order.
    Random,
    /// Random keys out of a few.
    RandomReuse(u32),
    /// Chains of changes of hot and cold pages, as in the WAL of an OLTP load, and a few images.
    Records,
}

impl KeyLayout {
    fn block(self, i: u32) -> u32 {
        match self {
            KeyLayout::Sequential => i,
            KeyLayout::Random => murmur32(i),
            KeyLayout::RandomReuse(mask) => murmur32(i) & mask,
            KeyLayout::Records if i.is_multiple_of(2) => murmur32(i) & (HOT - 1),
            KeyLayout::Records => HOT + (murmur32(i) & (COLD - 1)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum WriteDelta {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub io_mode: IoMode,
    pub value_bytes: usize,
    pub key_layout: KeyLayout,
    pub write_delta: WriteDelta,
}

impl Case {
    /// `key_size_bytes` is the size of the values; the name is kept so that ids match other benchmarks'.
    pub fn id(&self) -> String {
        let Case { io_mode, value_bytes, key_layout, write_delta } = self;
        format!(
            "io_mode={io_mode:?} volume_mib={VOLUME_MIB} key_size_bytes={value_bytes} key_layout={key_layout:?} \
             write_delta={write_delta:?}"
        )
    }

    /// Number of values.
    pub fn count(&self) -> u32 {
        let bytes = VOLUME_MIB << 20;
        let count = match self.key_layout {
            KeyLayout::Records => {
                let images = bytes / ((IMAGE_EVERY as usize - 1) * self.value_bytes + PAGE);
                images * IMAGE_EVERY as usize
            }
            _ => bytes / self.value_bytes,
        };
        count as u32
    }

    /// Key and LSN of value `i`.
    pub fn place(&self, i: u32) -> (Key, Lsn) {
        let key = Key { field6: self.key_layout.block(i), ..Key::from_i128(0) };
        (key, START + (u64::from(i) + 1) * self.value_bytes as u64)
    }

    pub fn is_image(&self, i: u32) -> bool {
        self.key_layout != KeyLayout::Records || i.is_multiple_of(IMAGE_EVERY)
    }

    fn len(&self, i: u32) -> usize {
        if self.key_layout == KeyLayout::Records && self.is_image(i) { PAGE } else { self.value_bytes }
    }
}

/// The contents of the values.
pub enum Contents {
    /// The same bytes in all values of a kind, because generating them is not to be measured.
    Same { image: Value, change: Value },
    /// Bytes that are unique to each value.
    Stamped(Case),
}

impl Contents {
    pub fn same(case: &Case) -> Self {
        let image = Value::Image(Bytes::from(vec![0; case.len(0)]));
        let record = WalRecord::Postgres { will_init: false, block_id: 0, record: vec![0; case.value_bytes].into() };
        Contents::Same { image, change: Value::WalRecord(record) }
    }

    pub fn value(&self, case: &Case, i: u32) -> Value {
        match self {
            Contents::Same { image, .. } if case.is_image(i) => image.clone(),
            Contents::Same { change, .. } => change.clone(),
            Contents::Stamped(case) => stamped(case, i),
        }
    }
}

/// Value `i` with unique bytes.
pub fn stamped(case: &Case, i: u32) -> Value {
    let words = (0..).flat_map(|word: u32| (murmur32(i) ^ word).to_le_bytes());
    let bytes: Bytes = words.take(case.len(i)).collect::<Vec<u8>>().into();
    if case.is_image(i) {
        Value::Image(bytes)
    } else {
        Value::WalRecord(WalRecord::Postgres { will_init: false, block_id: 0, record: bytes })
    }
}

pub fn cases() -> Vec<Case> {
    use KeyLayout::*;
    use WriteDelta::*;
    let matrix = [
        (100, Sequential, Yes),
        (100, Random, Yes),
        (100, RandomReuse(0x3ff), Yes),
        (100, Sequential, No),
        (8192, Sequential, Yes),
        (8192, Sequential, No),
        (100, Records, Yes),
        (100, Records, No),
    ];
    let with_mode = |io_mode| {
        matrix.map(|(value_bytes, key_layout, write_delta)| Case { io_mode, value_bytes, key_layout, write_delta })
    };
    [IoMode::Buffered, IoMode::Direct, IoMode::DirectRw].into_iter().flat_map(with_mode).collect()
}
