//! Decides when to prefetch.

use std::ops::Range;

/// Blocks per prefetched piece: 1 MiB.
pub(crate) const PIECE: u32 = 128;

/// A request this close to the last counts as its continuation: workers of a parallel scan overtake each other.
const NEAR: u32 = 128;

/// Number of consecutive blocks read before a scan is assumed.
const PATIENCE: u32 = 16;

/// How many MiB of a table are fetched ahead of a scan by default: enough that a source 50 ms away does not slow it
/// down.
pub(crate) const AHEAD_MIB: u32 = 32;

/// The most recent reads of a file.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    end: u32,
    run: u32,
}

impl Scan {
    /// Records that `blocks` are read; returns the block up to which to fetch, at least their end, and no more than
    /// `ahead_mib` and the rest of a piece beyond it.
    pub(crate) fn read(&mut self, blocks: &Range<u32>, ahead_mib: u32) -> u32 {
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
        if ahead_mib == 0 || self.run <= PATIENCE || self.run == blocks.len() as u32 {
            return blocks.end;
        }
        let window = self.run.saturating_mul(2).min(ahead_mib.saturating_mul(PIECE));
        blocks.end.max(self.end).saturating_add(window).next_multiple_of(PIECE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_is_fetched_ahead_and_points_are_not() {
        let mut scan = Scan::default();
        let ends: Vec<u32> = (0..6).map(|at| scan.read(&(at * 16..at * 16 + 16), AHEAD_MIB)).collect();
        assert_eq!(ends, [16, 128, 256, 256, 256, 384]);
        for block in [5000, 100, 90_000, 3000, 70_000] {
            assert_eq!(scan.read(&(block..block + 1), AHEAD_MIB), block + 1);
        }
    }

    #[test]
    fn no_more_is_fetched_ahead_than_allowed() {
        let farthest = |ahead_mib| {
            let mut scan = Scan::default();
            (0..1024).map(|at| scan.read(&(at * 16..at * 16 + 16), ahead_mib) - (at * 16 + 16)).max()
        };
        assert_eq!(farthest(0), Some(0));
        let farthest = [1, 8, 32].map(|ahead_mib| farthest(ahead_mib).unwrap() / PIECE);
        assert_eq!(farthest, [1, 8, 32], "whole MiB, of 128 blocks each");
    }

    /// As the root and a leaf of a small index do.
    #[test]
    fn points_near_each_other_are_no_scan() {
        let mut scan = Scan::default();
        for block in [3, 90, 150, 200, 290, 170, 250] {
            assert_eq!(scan.read(&(block..block + 1), AHEAD_MIB), block + 1);
        }
    }

    #[test]
    fn workers_that_overtake_each_other_are_one_scan() {
        let mut scan = Scan::default();
        scan.read(&(0..16), AHEAD_MIB);
        scan.read(&(32..48), AHEAD_MIB);
        assert!(scan.read(&(16..32), AHEAD_MIB) >= 128);
    }
}
