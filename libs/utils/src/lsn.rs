//! Log sequence numbers, and the arithmetic of WAL pages and segments.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::excerpt::Excerpt;

/// Size of a WAL page in bytes (`XLOG_BLCKSZ`).
pub const WAL_PAGE_SIZE: u64 = 8192;
/// Length of the header of a WAL page that is not the first of its segment.
pub const WAL_SHORT_HEADER: u64 = 24;
/// Length of the header of a segment's first page.
pub const WAL_LONG_HEADER: u64 = 40;

/// A position in the WAL, in bytes from its beginning. Text form: `X/Y`, two hexadecimal halves.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lsn(pub u64);

/// The text is not an LSN of the form `X/Y`.
#[derive(Debug, thiserror::Error, PartialEq, Eq, Clone)]
#[error(
    "invalid LSN {:?}: expected two hexadecimal numbers of at most 8 digits, such as 0/16B3748",
    Excerpt(.0)
)]
pub struct LsnParseError(pub String);

impl Lsn {
    /// Not a position: 0/0 is never the LSN of a record.
    pub const INVALID: Lsn = Lsn(0);
    /// The largest position.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// Whether this is a valid position (not 0/0).
    pub fn is_valid(self) -> bool {
        self != Self::INVALID
    }

    /// Rounds up to a multiple of 8, where records start.
    pub fn align(self) -> Lsn {
        Lsn(self.0.saturating_add(7) & !7)
    }

    /// Whether a record could start here.
    pub fn is_aligned(self) -> bool {
        self.0.is_multiple_of(8)
    }

    /// The difference `self - other` in bytes, if not negative.
    pub fn checked_sub(self, other: Lsn) -> Option<u64> {
        self.0.checked_sub(other.0)
    }

    /// The distance from `other`; negative if `self` is earlier.
    pub fn widening_sub(self, other: Lsn) -> i128 {
        i128::from(self.0) - i128::from(other.0)
    }

    /// Subtracts bytes, saturating at zero.
    pub fn saturating_sub(self, bytes: u64) -> Lsn {
        Lsn(self.0.saturating_sub(bytes))
    }

    /// Offset within the WAL page.
    pub fn page_offset(self) -> u64 {
        self.0 % WAL_PAGE_SIZE
    }

    /// Start of the WAL page that contains this position.
    pub fn page_start(self) -> Lsn {
        Lsn(self.0 - self.page_offset())
    }

    /// Offset within the segment; `segment_size` is in bytes.
    pub fn segment_offset(self, segment_size: u64) -> u64 {
        self.0 % segment_size
    }

    /// Number of the segment; `segment_size` is in bytes.
    pub fn segment_number(self, segment_size: u64) -> u64 {
        self.0 / segment_size
    }

    /// Start of the segment; `segment_size` is in bytes.
    pub fn segment_start(self, segment_size: u64) -> Lsn {
        Lsn(self.0 - self.segment_offset(segment_size))
    }

    /// Bytes left in the WAL page (a whole page at a page boundary).
    pub fn remaining_in_page(self) -> u64 {
        WAL_PAGE_SIZE - self.page_offset()
    }

    /// Where a record that would start here actually starts: aligned, and after the page header at a page boundary.
    pub fn normalize(self, segment_size: u64) -> Lsn {
        let lsn = self.align();
        if lsn.segment_offset(segment_size) == 0 {
            lsn + WAL_LONG_HEADER
        } else if lsn.page_offset() == 0 {
            lsn + WAL_SHORT_HEADER
        } else {
            lsn
        }
    }
}

impl Add<u64> for Lsn {
    type Output = Lsn;
    fn add(self, bytes: u64) -> Lsn {
        Lsn(self.0.checked_add(bytes).expect("a cluster writes far less than 2^64 bytes of WAL"))
    }
}

impl AddAssign<u64> for Lsn {
    fn add_assign(&mut self, bytes: u64) {
        *self = *self + bytes;
    }
}

impl Sub<u64> for Lsn {
    type Output = Lsn;
    fn sub(self, bytes: u64) -> Lsn {
        Lsn(self.0.checked_sub(bytes).expect("what is taken off an LSN lies before it"))
    }
}

impl From<u64> for Lsn {
    fn from(value: u64) -> Self {
        Lsn(value)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:X}/{:X}", self.0 >> 32, self.0 & 0xFFFF_FFFF)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn hex_half(text: &str) -> Option<u64> {
    let well_formed = (1..=8).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_hexdigit());
    well_formed.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

impl FromStr for Lsn {
    type Err = LsnParseError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.split_once('/')
            .and_then(|(high, low)| Some(Lsn(hex_half(high)? << 32 | hex_half(low)?)))
            .ok_or_else(|| LsnParseError(text.to_owned()))
    }
}

impl Serialize for Lsn {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() { serializer.collect_str(self) } else { serializer.serialize_u64(self.0) }
    }
}

impl<'de> Deserialize<'de> for Lsn {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
        } else {
            u64::deserialize(deserializer).map(Lsn)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEG: u64 = 16 << 20;

    #[test]
    fn page_and_segment_arithmetic() {
        let lsn = Lsn(0x1_0200_2010);
        assert_eq!(lsn.segment_number(SEG), 0x102);
        assert_eq!(lsn.segment_offset(SEG), 0x2010);
        assert_eq!(lsn.page_offset(), 0x10);
        assert_eq!(lsn.page_start(), Lsn(0x1_0200_2000));
        assert_eq!(Lsn(SEG).normalize(SEG), Lsn(SEG + 40));
        assert_eq!(Lsn(SEG + 8192).normalize(SEG), Lsn(SEG + 8192 + 24));
        assert_eq!(Lsn(SEG + 8189).normalize(SEG), Lsn(SEG + 8192 + 24));
        assert_eq!(Lsn(SEG + 41).normalize(SEG), Lsn(SEG + 48));
    }

    #[test]
    fn refuses_malformed_text() {
        for text in ["", "/", "0/", "/0", "0x1/2", "1/2/3", "123456789/0", "+1/0", "0/G", " 0/1"] {
            assert_eq!(text.parse::<Lsn>(), Err(LsnParseError(text.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn text_round_trip(value: u64) {
            let lsn = Lsn(value);
            prop_assert_eq!(lsn.to_string().parse::<Lsn>(), Ok(lsn));
            let json = serde_json::to_string(&lsn).unwrap();
            prop_assert_eq!(serde_json::from_str::<Lsn>(&json).unwrap(), lsn);
        }

        #[test]
        fn align_is_the_next_multiple_of_eight(value in 0..u64::MAX - 8) {
            let aligned = Lsn(value).align();
            prop_assert!(aligned.is_aligned() && aligned.0 >= value && aligned.0 - value < 8);
        }
    }
}
