//! The visibility map: two bits per heap block, and changes to it for which records have no block reference.
//!
//! Up to 16, and in 17 and 18 if the map page is not among the block references, heap records request clearing of
//! bits only by flags. Such a change neither checks nor sets the map page's LSN.

pub use postgres_formats::heap::{VM_ALL_FROZEN as ALL_FROZEN, VM_ALL_VISIBLE as ALL_VISIBLE};

/// Bytes of a map page after the page header.
const MAP_BYTES: usize = 8192 - HEADER;
const HEADER: usize = 24;
const BLOCKS_PER_BYTE: u32 = 4;

/// Both bits of a heap block (`VISIBILITYMAP_VALID_BITS`).
pub const VALID_BITS: u8 = ALL_VISIBLE | ALL_FROZEN;

/// Heap blocks covered by one map page.
pub const HEAP_BLOCKS_PER_PAGE: u32 = MAP_BYTES as u32 * BLOCKS_PER_BYTE;

/// Position of a heap block's bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VmPosition {
    /// Block number in the visibility map fork.
    pub page: u32,
    /// Byte within the map, that is, after the page header.
    pub byte: usize,
    /// Bit position of the lower of the two bits.
    pub shift: u8,
}

/// The position of the bits of heap block `heap_blkno`.
pub fn position(heap_blkno: u32) -> VmPosition {
    let within = heap_blkno % HEAP_BLOCKS_PER_PAGE;
    VmPosition {
        page: heap_blkno / HEAP_BLOCKS_PER_PAGE,
        byte: (within / BLOCKS_PER_BYTE) as usize,
        shift: (within % BLOCKS_PER_BYTE) as u8 * 2,
    }
}

/// The two bits of `heap_blkno`, which must be covered by this map page.
pub fn status(page: &[u8; 8192], heap_blkno: u32) -> u8 {
    let at = position(heap_blkno);
    page.get(HEADER + at.byte).map_or(0, |byte| (byte >> at.shift) & VALID_BITS)
}

/// Clears `bits` of `heap_blkno` on the map page that covers it. Returns whether any of them was set.
pub fn clear_bits(page: &mut [u8; 8192], heap_blkno: u32, bits: u8) -> bool {
    let at = position(heap_blkno);
    let mask = (bits & VALID_BITS) << at.shift;
    match page.get_mut(HEADER + at.byte) {
        Some(byte) if *byte & mask != 0 => {
            *byte &= !mask;
            true
        }
        _ => false,
    }
}

/// Sets `bits` of `heap_blkno` on the map page that covers it.
pub(crate) fn set_bits(page: &mut [u8; 8192], heap_blkno: u32, bits: u8) {
    let at = position(heap_blkno);
    if let Some(byte) = page.get_mut(HEADER + at.byte) {
        *byte |= (bits & VALID_BITS) << at.shift;
    }
}

/// Clears a truncated relation's tail on the last remaining map page: the bits of byte `byte` (counted after the page
/// header) from `shift` on, and all later bytes. Both are as [`position`] returns them for the new length in blocks.
pub fn truncate_tail(page: &mut [u8; 8192], byte: usize, shift: u8) {
    if let Some(first) = page.get_mut(HEADER + byte) {
        *first &= !(0xFFu8.checked_shl(u32::from(shift)).unwrap_or(0));
    }
    if let Some(rest) = page.get_mut(HEADER + byte + 1..) {
        rest.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions() {
        assert_eq!(HEAP_BLOCKS_PER_PAGE, 32672);
        assert_eq!(position(32671), VmPosition { page: 0, byte: 8167, shift: 6 });
        assert_eq!(position(32672 + 5), VmPosition { page: 1, byte: 1, shift: 2 });
    }

    #[test]
    fn bits_come_and_go_alone() {
        let mut page = [0u8; 8192];
        page[HEADER + 1] = 0xFF;
        assert!(clear_bits(&mut page, 5, ALL_FROZEN));
        assert_eq!(page[HEADER + 1], 0b1111_0111);
        assert_eq!(status(&page, 5), ALL_VISIBLE);
        assert!(!clear_bits(&mut page, 5, ALL_FROZEN));
        assert!(clear_bits(&mut page, 5, VALID_BITS));
        set_bits(&mut page, 5, ALL_FROZEN);
        assert_eq!(page[HEADER + 1], 0b1111_1011);
    }

    #[test]
    fn truncation_keeps_the_bits_before_the_cut() {
        let mut page = [0xFFu8; 8192];
        truncate_tail(&mut page, 3, 4);
        assert_eq!(page[HEADER + 2..HEADER + 4], [0xFF, 0x0F]);
        assert!(page[HEADER + 4..].iter().all(|b| *b == 0));
        truncate_tail(&mut page, 2, 0);
        assert_eq!(page[HEADER + 1..HEADER + 3], [0xFF, 0]);
        let mut last = [0xFFu8; 8192];
        truncate_tail(&mut last, 8167, 6);
        assert_eq!(last[8191], 0x3F);
    }
}
