//! The alignment of file offsets and memory that direct I/O requires, as reported by the file system.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, StatxFlags, statx};

/// Alignment of buffers in memory; sufficient for every device that accepts 4 KiB.
pub(super) const MEMORY_ALIGN: usize = 4096;
/// Smallest unit of file I/O: safe where the device does not report otherwise.
pub(super) const FALLBACK_ALIGN: u64 = 4096;

/// Alignment of offsets and lengths for direct I/O on `fd`, in bytes (a power of two, at least 4 KiB), or `None` if
/// the file does not support direct I/O with our buffers.
pub fn direct_io_alignment(fd: impl AsFd) -> Option<u64> {
    let Ok(stat) = statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some(FALLBACK_ALIGN);
    };
    if !StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::DIOALIGN) {
        return Some(FALLBACK_ALIGN);
    }
    from_device(stat.stx_dio_mem_align.into(), stat.stx_dio_offset_align.into())
}

fn from_device(memory: u64, offset: u64) -> Option<u64> {
    let supported = offset != 0 && offset.is_power_of_two() && memory <= MEMORY_ALIGN as u64;
    supported.then(|| offset.max(FALLBACK_ALIGN))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_answers() {
        assert_eq!(from_device(512, 512), Some(4096));
        assert_eq!(from_device(4, 16384), Some(16384));
        assert_eq!(from_device(0, 0), None);
        assert_eq!(from_device(65536, 4096), None);
        assert_eq!(from_device(512, 768), None);
    }

    #[test]
    fn real_file() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        assert!(direct_io_alignment(&file).is_none_or(|align| align >= 4096 && align.is_power_of_two()));
    }
}
