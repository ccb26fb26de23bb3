//! Keys of stored values: 18 bytes that sort like the key, and a 16-byte compact form.

mod kinds;

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use utils::excerpt::Excerpt;

pub use kinds::*;

/// Length of a key in bytes.
pub const KEY_SIZE: usize = 18;

/// The key of one page or one piece of metadata. Fields compare in order; their meaning depends on `field1`.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// Kind: 0 relations, 1 SLRUs, 2 two-phase files, 3 single files, 0x60..0x7F sparse metadata.
    pub field1: u8,
    /// Relations: tablespace.
    pub field2: u32,
    /// Relations: database.
    pub field3: u32,
    /// Relations: relation file number.
    pub field4: u32,
    /// Relations: fork.
    pub field5: u8,
    /// Relations: block number.
    pub field6: u32,
}

/// A key in 127 bits, with the same order. Keys whose `field2` exceeds 16 bits have no compact form (see
/// [`Key::is_compactable`]).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct CompactKey(i128);

/// The text is not a key, which has 36 hexadecimal digits.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error("invalid key {:?}: expected 36 hexadecimal digits", Excerpt(.0))]
pub struct KeyParseError(pub String);

impl Key {
    /// The smallest key.
    pub const MIN: Key = Key { field1: 0, field2: 0, field3: 0, field4: 0, field5: 0, field6: 0 };
    /// The largest key.
    pub const MAX: Key = Key {
        field1: u8::MAX,
        field2: u32::MAX,
        field3: u32::MAX,
        field4: u32::MAX,
        field5: u8::MAX,
        field6: u32::MAX,
    };

    /// Decodes a key from the bits of its compact form (the layout of [`CompactKey`]).
    pub const fn from_i128(bits: i128) -> Self {
        let bits = bits as u128;
        Key {
            field1: (bits >> 120) as u8 & 0x7F,
            field2: (bits >> 104) as u32 & 0xFFFF,
            field3: (bits >> 72) as u32,
            field4: (bits >> 40) as u32,
            field5: (bits >> 32) as u8,
            field6: bits as u32,
        }
    }

    /// The compact form as a number. Bits that do not fit are cut off: see [`Key::is_compactable`].
    pub const fn to_i128(&self) -> i128 {
        ((self.field1 as i128 & 0x7F) << 120)
            | ((self.field2 as i128 & 0xFFFF) << 104)
            | ((self.field3 as i128) << 72)
            | ((self.field4 as i128) << 40)
            | ((self.field5 as i128) << 32)
            | self.field6 as i128
    }

    /// The compact form.
    pub const fn to_compact(&self) -> CompactKey {
        CompactKey(self.to_i128())
    }

    /// Decodes a key from its compact form.
    pub const fn from_compact(compact: CompactKey) -> Self {
        Self::from_i128(compact.0)
    }

    /// Whether [`Key::to_compact`] is lossless.
    pub const fn is_compactable(&self) -> bool {
        self.field1 <= 0x7F && self.field2 <= 0xFFFF
    }

    /// The 18 bytes, which sort like the key.
    pub fn to_bytes(&self) -> [u8; KEY_SIZE] {
        let mut out = [0; KEY_SIZE];
        let (f1, rest) = out.split_at_mut(1);
        let (f2, rest) = rest.split_at_mut(4);
        let (f3, rest) = rest.split_at_mut(4);
        let (f4, rest) = rest.split_at_mut(4);
        let (f5, f6) = rest.split_at_mut(1);
        f1.copy_from_slice(&[self.field1]);
        f2.copy_from_slice(&self.field2.to_be_bytes());
        f3.copy_from_slice(&self.field3.to_be_bytes());
        f4.copy_from_slice(&self.field4.to_be_bytes());
        f5.copy_from_slice(&[self.field5]);
        f6.copy_from_slice(&self.field6.to_be_bytes());
        out
    }

    /// Decodes a key from its 18 bytes.
    pub fn from_bytes(bytes: &[u8; KEY_SIZE]) -> Self {
        let [f1, a2, b2, c2, d2, a3, b3, c3, d3, a4, b4, c4, d4, f5, a6, b6, c6, d6] = *bytes;
        Key {
            field1: f1,
            field2: u32::from_be_bytes([a2, b2, c2, d2]),
            field3: u32::from_be_bytes([a3, b3, c3, d3]),
            field4: u32::from_be_bytes([a4, b4, c4, d4]),
            field5: f5,
            field6: u32::from_be_bytes([a6, b6, c6, d6]),
        }
    }

    /// The next larger key; [`Key::MAX`] is its own successor.
    pub fn next(&self) -> Key {
        self.add(1)
    }

    /// The key `n` steps further, saturating at [`Key::MAX`].
    pub fn add(&self, n: u32) -> Key {
        let mut key = *self;
        let (low, carry) = key.field6.overflowing_add(n);
        key.field6 = low;
        if !carry {
            return key;
        }
        for step in [Self::carry5, Self::carry4, Self::carry3, Self::carry2, Self::carry1] {
            if !step(&mut key) {
                return key;
            }
        }
        Key::MAX
    }

    fn carry5(key: &mut Key) -> bool {
        key.field5 = key.field5.wrapping_add(1);
        key.field5 == 0
    }
    fn carry4(key: &mut Key) -> bool {
        key.field4 = key.field4.wrapping_add(1);
        key.field4 == 0
    }
    fn carry3(key: &mut Key) -> bool {
        key.field3 = key.field3.wrapping_add(1);
        key.field3 == 0
    }
    fn carry2(key: &mut Key) -> bool {
        key.field2 = key.field2.wrapping_add(1);
        key.field2 == 0
    }
    fn carry1(key: &mut Key) -> bool {
        key.field1 = key.field1.wrapping_add(1);
        key.field1 == 0
    }
}

impl CompactKey {
    /// The compact form as a number.
    pub const fn to_i128(self) -> i128 {
        self.0
    }
}

impl From<i128> for CompactKey {
    fn from(bits: i128) -> Self {
        CompactKey(bits)
    }
}

impl fmt::Debug for CompactKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Key::from_compact(*self), f)
    }
}

/// Half-open range of `count` consecutive keys from `start`.
pub fn key_range(start: Key, count: u32) -> Range<Key> {
    start..start.add(count)
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut digits = [0; 2 * KEY_SIZE];
        hex::encode_to_slice(self.to_bytes(), &mut digits).map_err(|_| fmt::Error)?;
        digits.make_ascii_uppercase();
        f.write_str(std::str::from_utf8(&digits).map_err(|_| fmt::Error)?)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Key {
    type Err = KeyParseError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut bytes = [0; KEY_SIZE];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| KeyParseError(text.to_owned()))?;
        Ok(Key::from_bytes(&bytes))
    }
}

#[cfg(test)]
mod tests;
