//! Free space maps, as far as truncation changes them (`freespace.c`, `fsmpage.c`): a tree of pages, each a binary
//! heap of bytes whose leaves are the free space of blocks, or the roots of the pages below.

use postgres_formats::BLCKSZ;

/// Size of the page header and `fp_next_slot`.
const NODES_AT: usize = 24 + 4;
const NODES_PER_PAGE: usize = BLCKSZ - NODES_AT;
const INNER_NODES: usize = BLCKSZ / 2 - 1;
/// Slots (leaves) per page.
pub(super) const SLOTS_PER_PAGE: u32 = (NODES_PER_PAGE - INNER_NODES) as u32;
/// Levels of pages.
const DEPTH: u32 = 3;

/// What remains of a map when its relation is truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// The bottom page that contains the first removed slot.
    pub(super) page: u32,
    /// The first removed slot, if the page keeps some before it.
    pub(super) first_slot: Option<u32>,
    /// Number of remaining pages.
    pub(super) pages: u32,
}

/// Where to cut the map of a relation that keeps `blocks` blocks.
pub(super) fn cut(blocks: u32) -> Cut {
    let (bottom, slot) = (blocks / SLOTS_PER_PAGE, blocks % SLOTS_PER_PAGE);
    let page = physical(bottom);
    let first_slot = (slot > 0).then_some(slot);
    Cut { page, first_slot, pages: page + u32::from(slot > 0) }
}

/// Block number of a page of the bottom level. It is preceded by all bottom pages with lower numbers, and by the
/// pages of the other levels up to and including its own ancestors.
fn physical(bottom: u32) -> u32 {
    let (mut number, mut pages) = (bottom, 0);
    for _ in 0..DEPTH {
        pages += number + 1;
        number /= SLOTS_PER_PAGE;
    }
    pages - 1
}

/// Zeroes the slots from `first_slot` on, and recomputes each inner node as the maximum of its children.
pub(super) fn truncate_page(page: &mut [u8; BLCKSZ], first_slot: u32) {
    let Some(nodes) = page.get_mut(NODES_AT..) else { return };
    if let Some(gone) = nodes.get_mut(INNER_NODES + first_slot as usize..) {
        gone.fill(0);
    }
    for node in (0..INNER_NODES).rev() {
        let child = |at: usize| nodes.get(at).copied().unwrap_or(0);
        let largest = child(2 * node + 1).max(child(2 * node + 2));
        if let Some(value) = nodes.get_mut(node) {
            *value = largest;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_of_pages() {
        assert_eq!(SLOTS_PER_PAGE, 4069);
        assert_eq!(cut(0), Cut { page: 2, first_slot: None, pages: 2 });
        assert_eq!(cut(1), Cut { page: 2, first_slot: Some(1), pages: 3 });
        assert_eq!(cut(4069), Cut { page: 3, first_slot: None, pages: 3 });
        // The second page of the middle level comes before the first bottom page under it.
        assert_eq!(physical(4068), 4068 + 2);
        assert_eq!(physical(4069), 4069 + 3);
    }

    #[test]
    fn truncated_pages_are_heaps() {
        let mut page = [0; BLCKSZ];
        for (slot, byte) in page[NODES_AT + INNER_NODES..].iter_mut().enumerate() {
            *byte = (slot % 200) as u8;
        }
        truncate_page(&mut page, 150);
        assert_eq!(page[NODES_AT], 149);
        assert_eq!(page[NODES_AT + INNER_NODES + 149..][..3], [149, 0, 0]);
        truncate_page(&mut page, 0);
        assert!(page.iter().all(|byte| *byte == 0));
    }
}
