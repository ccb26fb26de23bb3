//! Decides when to prefetch.

use std::ops::Range;

/// Blocks per prefetched piece: 1 MiB.
pub(crate) const PIECE: u32 = 128;

/// A request this close to the last counts as its continuation: workers of a parallel scan overtake each other.
const NEAR: u32 = 128;

/// Number of consecutive blocks read before a scan is assumed.
const PATIENCE: u32 = 16;

/// Maximum number of blocks to prefetch: 32 MiB, enough that a source 50 ms away does not slow a scan down.
const WINDOW: u32 = 32 * PIECE;

/// The most recent reads of a file.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    end: u32,
    run: u32,
}

impl Scan {
    /// Records that `blocks` are read; returns the block up to which to fetch, at least their end.
    pub(crate) fn read(&mut self, blocks: &Range<u32>) -> u32 {
        let near = self.end.saturating_sub(NEAR)..=self.end.saturating_add(NEAR);
        if self.run > 0 && near.contains(&blocks.start) {
            // Reading the same place again is not a scan, nor is skipping most of what lies between.
            let new = blocks.end.saturating_sub(self.end).min(blocks.len() as u32);
            self.run = self.run.saturating_add(new);
            self.end = self.end.max(blocks.end);
        } else {
            self.run = blocks.len() as u32;
            self.end = blocks.end;
        }
        if self.run <= PATIENCE || self.run == blocks.len() as u32 {
            return blocks.end;
        }
        let window = self.run.saturating_mul(2).min(WINDOW);
        blocks.end.max(self.end).saturating_add(window).next_multiple_of(PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_fetched_ahead_and_points_are_not() {
        let mut scan = Scan::default();
        let ends: Vec<u32> = (0..6).map(|at| scan.read(&(at * 16..at * 16 + 16))).collect();
        assert_eq!(ends, [16, 128, 256, 256, 256, 384]);
        for block in [5000, 100, 90_000, 3000, 70_000] {
            assert_eq!(scan.read(&(block..block + 1)), block + 1);
        }
    }

    /// As the root and a leaf of a small index do.
    #[test]
    fn points_near_each_other_are_no_scan() {
        let mut scan = Scan::default();
        for block in [3, 90, 150, 200, 290, 170, 250] {
            assert_eq!(scan.read(&(block..block + 1)), block + 1);
        }
    }

    #[test]
    fn workers_that_overtake_each_other_are_one_scan() {
        let mut scan = Scan::default();
        scan.read(&(0..16));
        scan.read(&(32..48));
        assert!(scan.read(&(16..32)) >= 128);
    }
}
