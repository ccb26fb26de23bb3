//! The values of a layer: each can be identified from its LSN, and differs from all others.

use bytes::Bytes;
use pageserver_api::key::Key;
use pageserver_api::keyspace::KeySpace;
use pageserver_api::record::WalRecord;
use pageserver_api::value::Value;
use utils::lsn::Lsn;

use crate::case::{Case, START, stamped};

/// Values in the order in which they arrive.
pub trait Values {
    /// Number of values.
    fn count(&self) -> u32;
    /// Key and LSN of a value.
    fn place(&self, i: u32) -> (Key, Lsn);
    /// The number of the value at an LSN.
    fn at(&self, lsn: Lsn) -> u32;
    /// The value itself.
    fn value(&self, i: u32) -> Value;
}

impl Values for Case {
    fn count(&self) -> u32 {
        Case::count(self)
    }

    fn place(&self, i: u32) -> (Key, Lsn) {
        Case::place(self, i)
    }

    fn at(&self, lsn: Lsn) -> u32 {
        ((lsn.0 - START.0) / self.value_bytes as u64 - 1) as u32
    }

    fn value(&self, i: u32) -> Value {
        stamped(self, i)
    }
}

/// Pages with one chain of changes each.
const PAGES: u32 = 4096;
const CHAIN: u32 = 100;
const CHANGES: u32 = PAGES * CHAIN;
const RECORD_LEN: usize = 100;
/// Pages with one image each, read by the point reads.
const IMAGES: u32 = 200_000;

/// Interleaved changes of many pages, then single images.
pub struct Chains;

impl Chains {
    /// One of the images.
    pub fn point(i: u32) -> KeySpace {
        let key = image_key(scattered_image(i.wrapping_mul(97) % IMAGES));
        KeySpace::single(key..key.next())
    }

    /// All changes of one page.
    pub fn chain(i: u32) -> KeySpace {
        let key = key(i.wrapping_mul(40_503) % PAGES);
        KeySpace::single(key..key.next())
    }
}

impl Values for Chains {
    fn count(&self) -> u32 {
        CHANGES + IMAGES
    }

    fn place(&self, i: u32) -> (Key, Lsn) {
        let key = if i < CHANGES { key(shuffled(i % PAGES)) } else { image_key(scattered_image(i - CHANGES)) };
        (key, Lsn(8 * (u64::from(i) + 1)))
    }

    fn at(&self, lsn: Lsn) -> u32 {
        (lsn.0 / 8 - 1) as u32
    }

    fn value(&self, i: u32) -> Value {
        let words = (0..).flat_map(|word: u32| (i.wrapping_mul(2_654_435_761) ^ word).to_le_bytes());
        let bytes: Bytes = words.take(RECORD_LEN).collect::<Vec<u8>>().into();
        if i < CHANGES {
            Value::WalRecord(WalRecord::Postgres { will_init: i < PAGES, block_id: 0, record: bytes })
        } else {
            Value::Image(bytes)
        }
    }
}

fn key(block: u32) -> Key {
    Key { field2: 1663, field3: 5, field4: 16384, field6: block, ..Key::MIN }
}

fn image_key(block: u32) -> Key {
    Key { field4: 16385, ..key(block) }
}

/// A scattered order of `0..PAGES`.
fn shuffled(i: u32) -> u32 {
    i.wrapping_mul(2_654_435_761) % PAGES
}

/// A scattered order of `0..IMAGES`: the factor has no divisor in common with it.
fn scattered_image(i: u32) -> u32 {
    (u64::from(i) * 40_507 % u64::from(IMAGES)) as u32
}
