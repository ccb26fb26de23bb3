//! Detects sequential reads among all reads of a file, and decides how far to fetch ahead of them.

use std::ops::Range;

/// Maximum number of sequences tracked per file.
const STREAMS_MAX: usize = 4;
/// Blocks that a sequence may skip at once.
const SKIP_BLOCKS_MAX: u64 = 32;
/// The same once it is fetched ahead of: whoever scans asks for many pieces at once, and they overtake each other.
const OVERTAKE_BLOCKS_MAX: u64 = 2048;
/// How far back a sequence is remembered at most, in blocks; at least half of that is.
const SPAN_BLOCKS_MAX: u64 = 16_384;
/// Blocks that must have been read before a sequence is fetched ahead of.
const RUN_BLOCKS_MIN: u64 = 16;
/// Fewest blocks fetched ahead at once: 1 MiB.
pub(super) const WINDOW_BLOCKS_MIN: u64 = 256;

/// A sequence of reads.
#[derive(Clone, Copy, Debug)]
struct Stream {
    id: u64,
    /// Where it began, or as far back as it is remembered. What was overtaken lies after it.
    start: u64,
    /// The block after the last one read.
    next: u64,
    /// Blocks that it has read since `start`.
    used: u64,
    /// The end of the blocks fetched or requested.
    ahead: u64,
    /// When it was last read, on the clock of [`Streams`].
    stamp: u64,
}

/// The sequences of a file.
#[derive(Debug, Default)]
pub(super) struct Streams {
    list: Vec<Stream>,
    clock: u64,
}

/// What a read means for its sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Advice {
    /// The sequence.
    pub(super) stream: u64,
    /// A sequence that this one has displaced.
    pub(super) ended: Option<u64>,
    /// What to fetch now, beyond what is being read.
    pub(super) fetch: Option<Range<u64>>,
    /// Nothing follows this read.
    pub(super) is_last: bool,
}

impl Streams {
    /// Notes a read of `used` blocks of `range`. At most `window_max` blocks are fetched ahead at once, and none at
    /// or after `limit`.
    pub(super) fn note(&mut self, range: Range<u64>, used: u64, limit: u64, window_max: u64) -> Advice {
        self.clock += 1;
        let Some(stream) = self.list.iter_mut().find(|stream| stream.has(range.start)) else {
            let ended = self.begin(range, used);
            return Advice { stream: self.clock, ended, fetch: None, is_last: false };
        };
        stream.advance(&range, used);
        stream.stamp = self.clock;
        let (id, fetch, is_last) = (stream.id, stream.window(limit, window_max), stream.next >= limit);
        self.list.retain(|stream| stream.id != id || !is_last);
        Advice { stream: id, ended: None, fetch, is_last }
    }

    /// Notes that, of what `advice` said, blocks from `block` on are not fetched.
    pub(super) fn decline(&mut self, advice: &Advice, block: u64) {
        if let Some(stream) = self.list.iter_mut().find(|stream| stream.id == advice.stream) {
            stream.ahead = stream.ahead.min(block);
        }
    }

    /// Begins a sequence with a read. Returns the one that it displaces.
    fn begin(&mut self, range: Range<u64>, used: u64) -> Option<u64> {
        let stream =
            Stream { id: self.clock, start: range.start, next: range.end, used, ahead: range.end, stamp: self.clock };
        if self.list.len() < STREAMS_MAX {
            self.list.push(stream);
            return None;
        }
        let oldest = self.list.iter_mut().min_by_key(|stream| stream.stamp)?;
        Some(std::mem::replace(oldest, stream).id)
    }
}

impl Stream {
    /// Whether it has so few gaps that what comes next is worth fetching.
    fn is_run(&self) -> bool {
        self.used >= RUN_BLOCKS_MIN && self.used * 2 >= self.next - self.start
    }

    /// Whether a read that begins at `block` belongs to it.
    fn has(&self, block: u64) -> bool {
        if self.is_run() {
            let end = self.ahead.max(self.next + OVERTAKE_BLOCKS_MAX);
            return (self.start..=end).contains(&block);
        }
        // The last block may be read again: values do not end at block boundaries.
        block + 1 >= self.next && block <= self.next + SKIP_BLOCKS_MAX
    }

    /// Notes a read of `used` blocks of `range`.
    fn advance(&mut self, range: &Range<u64>, used: u64) {
        // Of what was read before, only the last block counts once.
        let again = u64::from(range.start < self.next && range.end > self.next);
        self.next = self.next.max(range.end);
        self.used = (self.used + used.saturating_sub(again)).min(self.next - self.start);
        self.ahead = self.ahead.max(self.next);
        let span = self.next - self.start;
        if span > SPAN_BLOCKS_MAX {
            self.start = self.next - span / 2;
            self.used /= 2;
        }
    }

    /// The next blocks to fetch. The window grows with the sequence, so that a short one wastes little; for a long
    /// one, one window is in flight while another is being read.
    fn window(&mut self, limit: u64, window_max: u64) -> Option<Range<u64>> {
        if !self.is_run() || window_max < WINDOW_BLOCKS_MIN {
            return None;
        }
        let window = self.used.clamp(WINDOW_BLOCKS_MIN, window_max);
        let low = if window < window_max { window / 2 } else { window };
        if self.ahead - self.next >= low {
            return None;
        }
        let mut end = self.ahead + window;
        if end + WINDOW_BLOCKS_MIN > limit {
            // Leave no small remainder.
            end = limit;
        }
        let range = self.ahead..end;
        self.ahead = self.ahead.max(end);
        (range.start < range.end).then_some(range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 100_000;
    const MAX: u64 = 1024;

    #[test]
    fn random_reads_fetch_nothing_ahead() {
        let mut streams = Streams::default();
        let mut place = 7u64;
        for _ in 0..10_000 {
            place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = place >> 40;
            assert_eq!(streams.note(first..first + 3, 3, 1 << 24, MAX).fetch, None);
        }
    }

    #[test]
    fn a_scan_fetches_all_of_it_once_in_large_pieces() {
        for (read, skip) in [(2, 0), (3, 0), (64, 0), (2, 1), (700, 0)] {
            let mut streams = Streams::default();
            let (mut fetched, mut pieces, mut alone) = (0, 0, 0);
            let mut ahead = 0;
            let mut first = 1;
            while first + read <= LIMIT {
                alone += u64::from(first + read > ahead);
                let advice = streams.note(first..first + read, read, LIMIT, MAX);
                if let Some(range) = advice.fetch {
                    assert!(range.start >= ahead && range.end <= LIMIT, "{range:?} after {ahead}");
                    assert!(range.end - range.start >= WINDOW_BLOCKS_MIN.min(LIMIT - range.start), "{range:?}");
                    fetched += range.end - range.start;
                    pieces += 1;
                    ahead = range.end;
                    assert!(ahead - (first + read) <= 2 * MAX + WINDOW_BLOCKS_MIN, "too far ahead");
                }
                first += read + skip;
            }
            assert!(fetched <= LIMIT && fetched > LIMIT * 9 / 10, "read {read}: {fetched} blocks ahead");
            assert!(alone <= 20 && pieces < 120, "read {read}: {alone} reads alone, {pieces} pieces");
        }
    }

    #[test]
    fn several_scans_and_sparse_ones() {
        let mut streams = Streams::default();
        let mut fetched = 0;
        for at in 0..2000u64 {
            for scan in 0..3 {
                let first = scan * 20_000 + at * 2;
                fetched +=
                    streams.note(first..first + 2, 2, LIMIT, MAX).fetch.map_or(0, |range| range.end - range.start);
            }
        }
        assert!((12_000..12_000 + 3 * 3 * MAX).contains(&fetched), "{fetched}");
        let mut streams = Streams::default();
        for at in 0..2000 {
            let first = at * 30;
            assert_eq!(streams.note(first..first + 2, 2, LIMIT, MAX).fetch, None, "one block in fifteen is no scan");
        }
    }

    /// Pieces of 150 blocks, many at once, each of which may be overtaken by up to ten others.
    #[test]
    fn a_scan_whose_pieces_overtake_each_other_is_one() {
        let mut streams = Streams::default();
        let (mut fetched, mut seed) = (Vec::new(), 7u64);
        let mut pieces: Vec<u64> = (0..660).collect();
        for at in 8..pieces.len() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            pieces.swap(at, (at + (seed >> 33) as usize % 10).min(659));
        }
        for piece in pieces {
            let range = piece * 150..(piece + 1) * 150;
            let advice = streams.note(range, 150, LIMIT, MAX);
            assert_eq!((advice.ended, advice.stream), (None, 1), "piece {piece}");
            fetched.extend(advice.fetch);
        }
        assert!(fetched.is_sorted_by_key(|range| range.start), "{fetched:?}");
        assert!(fetched.windows(2).all(|two| two[0].end <= two[1].start), "{fetched:?}");
    }

    /// A few hundred blocks that are read again and again, anywhere in a layer.
    #[test]
    fn a_place_that_is_read_again_and_again_is_no_scan() {
        let mut streams = Streams::default();
        let (mut fetched, mut seed) = (0, 7u64);
        for _ in 0..100_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let first = 5_000 + (seed >> 33) % 300 * 10;
            fetched += streams.note(first..first + 3, 3, LIMIT, MAX).fetch.map_or(0, |range| range.end - range.start);
        }
        assert!(fetched <= 3_000, "{fetched} blocks of a place of 3,000");
    }

    #[test]
    fn a_short_run_wastes_little() {
        for run in 1..300 {
            let mut streams = Streams::default();
            let fetched: u64 = (0..run)
                .filter_map(|at| streams.note(at * 2..at * 2 + 2, 2, LIMIT, MAX).fetch)
                .map(|range| range.end - range.start)
                .sum();
            assert!(fetched <= 2 * WINDOW_BLOCKS_MIN + 3 * run * 2, "a run of {run}: {fetched} blocks");
            assert!(run * 2 >= RUN_BLOCKS_MIN || fetched == 0);
        }
    }
}
