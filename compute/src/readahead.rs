//! When to fetch more than was asked for.

use std::ops::Range;

/// Blocks of a piece that is fetched at once: 1 MiB.
pub(crate) const PIECE: u32 = 128;

/// A request this near to the last counts as its continuation: workers of a parallel scan overtake each other.
const NEAR: u32 = 128;

/// Blocks read in a row after which a scan is assumed.
const PATIENCE: u32 = 16;

/// At most so many blocks ahead: 32 MiB, so that a source that is 50 ms away does not slow a scan down.
const WINDOW: u32 = 32 * PIECE;

/// What was read of a file last.
#[derive(Debug, Default)]
pub(crate) struct Scan {
    end: u32,
    run: u32,
}

impl Scan {
    /// Notes that `blocks` are read; gives the block up to which to fetch, at least their end.
    pub(crate) fn read(&mut self, blocks: &Range<u32>) -> u32 {
        let near = self.end.saturating_sub(NEAR)..=self.end.saturating_add(NEAR);
        if self.run > 0 && near.contains(&blocks.start) {
            // Reading a place again is no scan.
            self.run = self.run.saturating_add(blocks.end.saturating_sub(self.end));
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

    #[test]
    fn workers_that_overtake_each_other_are_one_scan() {
        let mut scan = Scan::default();
        scan.read(&(0..16));
        scan.read(&(32..48));
        assert!(scan.read(&(16..32)) >= 128);
    }
}
