//! Recognizes index scans: which blocks of a table are read next.
//!
//! Postgres follows an index to one row after the other, and asks for each page of the table only when it needs it:
//! at a source some milliseconds away each of them costs as much. The index page has been read through here before, so
//! where it leads to is known: to the rows of one key, or, where a scan goes on from key to key, to those of the next
//! ones. Which table an index belongs to shows when a block is missing that the index page names.

use std::collections::VecDeque;
use std::ops::Range;

use parking_lot::Mutex;
use postgres_formats::btree::{LeafEntry, is_leaf, leaf_entries};
use postgres_formats::page::{Page, PageBytes};

use crate::overlay::node_id::NodeId;

/// Index pages that are remembered: those of a few scans at once.
const LEAVES: usize = 16;
/// Rows of one key that are fetched with the first of them, and the most that are fetched ahead of a scan: fewer than
/// the connections to a page server.
const FIRST: usize = 16;
const WINDOW_MAX: usize = 24;
/// A scan may leave out so many rows, whose pages Postgres has in memory, and is still the same.
const SKIPPED_MAX: usize = 8;
/// From so many steps to a next key on a scan is one of a range.
const KEYS_PASSED: usize = 2;

/// The index pages that were read last.
#[derive(Default)]
pub(crate) struct IndexScans {
    leaves: Mutex<VecDeque<Leaf>>,
}

/// A page of an index, and how far a scan through it has come.
struct Leaf {
    index: NodeId,
    block: u32,
    /// Not looked into until a block is missing.
    page: Option<Box<PageBytes>>,
    /// Neighboring rows of one block are one.
    rows: Vec<LeafEntry>,
    scan: Option<Scan>,
}

/// Rows that are read in the order of an index.
#[derive(Clone, Copy)]
struct Scan {
    table: NodeId,
    /// The row that was read last; `None` on a page that follows one that was scanned.
    at: Option<usize>,
    is_forward: bool,
    /// How often it went on to another key, one after the other.
    keys_passed: usize,
    window: usize,
}

impl IndexScans {
    /// A block of a relation was read. Cheap if it is not a page of an index.
    pub(crate) fn note_page(&self, index: NodeId, block: u32, bytes: &[u8]) {
        let Ok(page) = <&PageBytes>::try_from(bytes) else { return };
        if !is_leaf(&Page::new(page)) {
            return;
        }
        let mut leaves = self.leaves.lock();
        let before = leaves.iter().find(|leaf| leaf.index == index).and_then(|leaf| leaf.scan);
        let scan = before.filter(Scan::crosses_keys).map(|scan| Scan { at: None, ..scan });
        leaves.retain(|leaf| (leaf.index, leaf.block) != (index, block));
        leaves.truncate(LEAVES - 1);
        leaves.push_front(Leaf { index, block, page: Some(Box::new(*page)), rows: Vec::new(), scan });
    }

    /// A block of `table` is to be read. Returns blocks that are likely to be read next.
    pub(crate) fn next(&self, table: NodeId, block: u32, is_missing: bool) -> Vec<u32> {
        let mut leaves = self.leaves.lock();
        let is_known = |leaf: &Leaf| leaf.scan.is_some_and(|scan| scan.table == table);
        let known = leaves.iter_mut().filter(|leaf| is_known(leaf)).find_map(|leaf| leaf.next(table, block));
        if known.is_some() || !is_missing {
            return known.unwrap_or_default();
        }
        let mut others = leaves.iter_mut().filter(|leaf| !is_known(leaf) && leaf.index != table);
        others.find_map(|leaf| leaf.next(table, block)).unwrap_or_default()
    }
}

impl Leaf {
    /// The blocks that come after `block` in this page's order; `None` if the page does not lead there.
    fn next(&mut self, table: NodeId, block: u32) -> Option<Vec<u32>> {
        if let Some(page) = self.page.take() {
            self.rows = leaf_entries(&Page::new(&*page)).unwrap_or_default();
            self.rows.dedup_by_key(|row| row.block);
        }
        let at = self.position(block)?;
        let scan = match self.scan.filter(|scan| scan.table == table) {
            Some(scan) => scan.moved(at, &self.rows),
            None => Scan { table, at: Some(at), is_forward: self.is_first_of_key(at), keys_passed: 0, window: FIRST },
        };
        self.scan = Some(scan);
        let key = self.rows.get(at)?.key;
        let wanted = |row: &&LeafEntry| scan.crosses_keys() || row.key == key;
        let ahead = self.rows.get(scan.ahead(at, self.rows.len()))?.iter().filter(wanted).map(|row| row.block);
        let mut blocks: Vec<u32> = ahead.filter(|next| *next != block).collect();
        blocks.sort_unstable();
        blocks.dedup();
        Some(blocks)
    }

    /// The row with `block` that is nearest to the one read last.
    fn position(&self, block: u32) -> Option<usize> {
        let last = self.scan.and_then(|scan| scan.at).unwrap_or(0);
        let found = self.rows.iter().enumerate().filter(|(_, row)| row.block == block).map(|(at, _)| at);
        found.min_by_key(|at| at.abs_diff(last))
    }

    /// Whether a scan of its key that begins at row `at` goes forward: not if it is the last of several.
    fn is_first_of_key(&self, at: usize) -> bool {
        let key = |at: usize| self.rows.get(at).map(|row| row.key);
        at == 0 || key(at - 1) != key(at) || key(at + 1) == key(at)
    }
}

impl Scan {
    /// After row `at` was read.
    fn moved(self, at: usize, rows: &[LeafEntry]) -> Self {
        let Some(last) = self.at else { return Self { at: Some(at), ..self } };
        let key = |at: usize| rows.get(at).map(|row| row.key);
        let (steps, is_forward) = (at.abs_diff(last), at > last);
        if steps == 0 {
            return self;
        }
        if steps > SKIPPED_MAX {
            return Self { at: Some(at), is_forward: true, keys_passed: 0, window: FIRST, ..self };
        }
        let before = if is_forward == self.is_forward { self.keys_passed } else { 0 };
        let keys_passed = before + usize::from(key(at) != key(last));
        Self { at: Some(at), is_forward, keys_passed, window: WINDOW_MAX, ..self }
    }

    /// Whether it goes on from key to key: not by chance, as lookups of single keys may be neighbors.
    fn crosses_keys(&self) -> bool {
        self.keys_passed >= KEYS_PASSED
    }

    /// The rows that are read after row `at` of `count`.
    fn ahead(&self, at: usize, count: usize) -> Range<usize> {
        if self.is_forward { at + 1..count.min(at + 1 + self.window) } else { at.saturating_sub(self.window)..at }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const INDEX: NodeId = 7;
    const TABLE: NodeId = 8;

    /// A leaf page with an entry of 16 bytes for each `(key, block)`.
    pub(crate) fn leaf(rows: &[(u64, u32)]) -> Box<PageBytes> {
        let mut page = Page::new(Box::new([0; crate::BLOCK]));
        page.init(16);
        let special = usize::from(page.special());
        page.put(special + 12, &1u16.to_le_bytes()).unwrap();
        for (number, (key, block)) in rows.iter().enumerate() {
            let mut item = Vec::new();
            item.extend_from_slice(&((block >> 16) as u16).to_le_bytes());
            item.extend_from_slice(&(*block as u16).to_le_bytes());
            item.extend_from_slice(&1u16.to_le_bytes());
            item.extend_from_slice(&16u16.to_le_bytes());
            item.extend_from_slice(&key.to_le_bytes());
            page.add_item(&item, number as u16 + 1).unwrap();
        }
        page.into_inner()
    }

    /// Rows of keys 0, 1, 2... with three rows each, whose blocks are far apart.
    fn threes() -> Vec<(u64, u32)> {
        (0..300).map(|row| (row / 3, (row as u32 * 7919) % 100_003 + 10)).collect()
    }

    const NONE: [u32; 0] = [];

    fn block(rows: &[(u64, u32)], row: usize) -> u32 {
        rows[row].1
    }

    fn sorted(mut blocks: Vec<u32>) -> Vec<u32> {
        blocks.sort_unstable();
        blocks
    }

    #[test]
    fn all_rows_of_a_key_are_fetched_with_its_first_or_its_last() {
        let rows = threes();
        for (first, others) in [(30, [31, 32]), (32, [30, 31])] {
            let scans = IndexScans::default();
            scans.note_page(INDEX, 3, &leaf(&rows)[..]);
            let expected = sorted(others.map(|row| block(&rows, row)).to_vec());
            assert_eq!(scans.next(TABLE, block(&rows, first), true), expected);
        }
    }

    #[test]
    fn a_scan_from_key_to_key_is_fetched_ahead_and_single_keys_are_not() {
        let unique: Vec<(u64, u32)> = threes().iter().zip(0..).map(|((_, block), key)| (key, *block)).collect();
        let scans = IndexScans::default();
        scans.note_page(INDEX, 3, &leaf(&unique)[..]);
        for row in [200, 20, 100, 250] {
            assert_eq!(scans.next(TABLE, block(&unique, row), true), NONE, "a single key");
        }
        for row in [100, 101] {
            assert_eq!(scans.next(TABLE, block(&unique, row), true), NONE, "one step may be chance");
        }
        let ahead = scans.next(TABLE, block(&unique, 102), true);
        assert_eq!(ahead, sorted((103..103 + WINDOW_MAX).map(|row| block(&unique, row)).collect()));
        // What was fetched is not missing any more, and the scan goes on.
        let ahead = scans.next(TABLE, block(&unique, 110), false);
        assert_eq!(ahead, sorted((111..111 + WINDOW_MAX).map(|row| block(&unique, row)).collect()));
        // The next page of the same index continues it, from its first row on.
        let more: Vec<(u64, u32)> = (0..100).map(|key| (key + 1000, 200_000 + key as u32 * 3)).collect();
        scans.note_page(INDEX, 4, &leaf(&more)[..]);
        assert_eq!(scans.next(TABLE, block(&more, 0), true).len(), WINDOW_MAX);
    }

    #[test]
    fn a_scan_may_go_backward() {
        let unique: Vec<(u64, u32)> = threes().iter().zip(0..).map(|((_, block), key)| (key, *block)).collect();
        let scans = IndexScans::default();
        scans.note_page(INDEX, 3, &leaf(&unique)[..]);
        let [.., ahead] = [200, 199, 198, 197].map(|row| scans.next(TABLE, block(&unique, row), true));
        assert_eq!(ahead, sorted((197 - WINDOW_MAX..197).map(|row| block(&unique, row)).collect()));
    }

    #[test]
    fn what_is_no_leaf_or_not_missing_says_nothing() {
        let rows = threes();
        let scans = IndexScans::default();
        let mut inner = leaf(&rows);
        inner[crate::BLOCK - 8] = 1;
        scans.note_page(INDEX, 1, &inner[..]);
        scans.note_page(INDEX, 2, &[0; crate::BLOCK]);
        scans.note_page(INDEX, 3, &leaf(&rows)[..100]);
        assert_eq!(scans.next(TABLE, block(&rows, 30), true), NONE);
        scans.note_page(INDEX, 3, &leaf(&rows)[..]);
        assert_eq!(scans.next(TABLE, block(&rows, 30), false), NONE, "a table all of which is here costs nothing");
        assert_eq!(scans.next(INDEX, block(&rows, 30), true), NONE, "an index leads to its table");
        assert_eq!(scans.next(TABLE, 5, true), NONE, "a block that the page does not name");
        assert_eq!(scans.next(TABLE, block(&rows, 30), true).len(), 2);
    }

    #[test]
    fn few_pages_are_remembered() {
        let rows = threes();
        let scans = IndexScans::default();
        (0..100).for_each(|number| scans.note_page(INDEX, number, &leaf(&rows)[..]));
        assert_eq!(scans.leaves.lock().len(), LEAVES);
    }
}
