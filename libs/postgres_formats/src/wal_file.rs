//! Names of WAL segment files, and positions in them.

use std::fmt;

use utils::lsn::Lsn;

/// The usual size of a WAL segment in bytes.
pub const DEFAULT_SEGMENT_SIZE: u32 = 16 << 20;

/// Whether `size` can be the size of a WAL segment in bytes: a power of two from 1 MiB to 1 GiB.
pub const fn is_valid_segment_size(size: u32) -> bool {
    size.is_power_of_two() && size >= 1 << 20 && size <= 1 << 30
}

/// A position in a segment file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WalPosition {
    /// Timeline.
    pub timeline: u32,
    /// LSN.
    pub lsn: Lsn,
    /// Size of a segment in bytes.
    pub segment_size: u32,
}

impl WalPosition {
    /// Name of the file: eight hexadecimal digits each of timeline, high, and low part of the segment number.
    pub fn file_name(&self) -> String {
        segment_file_name(self.timeline, self.lsn.segment_number(self.segment_size.into()), self.segment_size)
    }

    /// Offset within the file in bytes.
    pub fn offset(&self) -> u32 {
        self.lsn.segment_offset(self.segment_size.into()) as u32
    }
}

impl fmt::Display for WalPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, offset {}", self.file_name(), self.offset())
    }
}

/// Number of segments that share the high part of their number.
const fn segments_per_id(segment_size: u32) -> u64 {
    (1 << 32) / segment_size as u64
}

/// Name of the file of segment `segment` (its LSN divided by the segment size) of a timeline.
pub fn segment_file_name(timeline: u32, segment: u64, segment_size: u32) -> String {
    let per_id = segments_per_id(segment_size);
    format!("{timeline:08X}{:08X}{:08X}", segment / per_id, segment % per_id)
}

/// Timeline and segment number of a file with this name; `None` if it is not a segment file.
pub fn parse_segment_file_name(name: &str, segment_size: u32) -> Option<(u32, u64)> {
    let part = |range: std::ops::Range<usize>| u32::from_str_radix(name.get(range)?, 16).ok();
    let (timeline, high, low) = (part(0..8)?, part(8..16)?, part(16..24)?);
    let segment = u64::from(high) * segments_per_id(segment_size) + u64::from(low);
    (segment_file_name(timeline, segment, segment_size) == name).then_some((timeline, segment))
}

/// Name of the history file of a timeline.
pub fn history_file_name(timeline: u32) -> String {
    format!("{timeline:08X}.history")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers() {
        let name = segment_file_name(1, 0x1FF, DEFAULT_SEGMENT_SIZE);
        assert_eq!(name, "0000000100000001000000FF");
        assert_eq!(parse_segment_file_name(&name, DEFAULT_SEGMENT_SIZE), Some((1, 0x1FF)));
        assert_eq!(segment_file_name(2, 0x1FF, 1 << 30), "000000020000007F00000003");
        for bad in ["", "000000010000000100000100", "0000000100000001000000ff", "0000000100000001000000FF.partial"] {
            assert_eq!(parse_segment_file_name(bad, DEFAULT_SEGMENT_SIZE), None, "{bad}");
        }
        assert_eq!(parse_segment_file_name("0000000100000001000000F\u{e9}", DEFAULT_SEGMENT_SIZE), None);
        assert_eq!(history_file_name(0x1A), "0000001A.history");
    }

    #[test]
    fn positions() {
        let at = WalPosition { timeline: 1, lsn: Lsn(0x1_02AB_CDEF), segment_size: DEFAULT_SEGMENT_SIZE };
        assert_eq!(at.to_string(), "000000010000000100000002, offset 11259375");
        assert!(is_valid_segment_size(1 << 20) && !is_valid_segment_size(3 << 20) && !is_valid_segment_size(0));
    }
}
