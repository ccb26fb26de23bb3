//! Brings values together that belong together when an in-memory layer is sealed.
//!
//! Values lie in the file in order of arrival. Page images and the values of a bulk load may stay there: a read needs
//! only one of them. But the many small changes of a hot page would cost one read each, so those are copied behind
//! the values, key by key, and the index points to the copies. Only scattered values are written twice.
//!
//! Where most values are scattered, all are copied, to a file of its own: it has no bytes that nobody needs any more,
//! and compaction reads it from front to back, not value by value.
//!
//! Copying goes through the values in order of arrival and puts each into its place in a buffer for the copies, so
//! that the file is read once, from front to back, and nothing is sorted by position. Copies that do not fit into the
//! buffer take another round through the file.

use std::ops::Range;

use parking_lot::RwLock;

use super::block_source::{BlockSource, Blocks, Extent, Reading};
use super::block_writer::BlockWriter;
use super::memory_pool::MemoryPool;
use super::value_index::{self, Sorted, ValueIndex};
use crate::context::Pace;
use errors::StorageError;
use virtual_file::AlignedBuf;

/// Changes longer than this stay in place: their bytes dominate the cost of reading them.
const MOVED_LEN_MAX: u32 = 2048;
/// A chain whose changes lie within this many bytes costs one read where it is.
const SPAN_MAX: u64 = 16 << 10;
/// Maximum bytes of moved values in memory.
const ROUND_BYTES_MAX: u64 = 128 << 20;
/// Bytes of values read at once.
const READ_BYTES_MAX: u64 = 4 << 20;
/// Size of the buffers in which the moved values are assembled.
const CHUNK_BYTES: usize = 4 << 20;
/// Bytes that are put in order before they are appended: few enough to stay in the processor's caches.
const COPIED_AT_ONCE: usize = 256 << 10;
/// Reading one value that lies alone takes a device about as long as reading or writing so many bytes in one go.
const SCATTERED_BYTES: u64 = 64 << 10;
/// Marks a value that stays in place.
const STAYS: u32 = u32::MAX;

/// All have size [`CHUNK_BYTES`].
static CHUNKS: MemoryPool<Vec<AlignedBuf>> = MemoryPool::new();

/// Frees memory that no layer has needed for some time. Called by the periodic maintenance of timelines.
pub(crate) fn release_unused() {
    CHUNKS.release_unused();
    value_index::release_unused();
}

/// Which values move, and where.
#[derive(Debug)]
pub(super) struct Moves {
    /// For each value, by arrival number, its place in the moved bytes, or [`STAYS`]. Values beyond the last
    /// representable place stay, too: slower reads are acceptable in a layer that large.
    places: Vec<u32>,
    /// Starts of the rounds in the moved bytes, followed by the end of the last one.
    rounds: Vec<u64>,
}

impl Moves {
    /// Finds scattered chains in `sorted`, and sets the positions of values that move; copies begin at `base`.
    pub(super) fn plan(sorted: &mut Sorted, base: u64) -> Self {
        let mut moves = Self { places: vec![STAYS; sorted.len()], rounds: vec![0, 0] };
        let mut chain: Vec<(usize, Extent)> = Vec::new();
        for at in 0..sorted.len() {
            if !sorted.continues_key(at) {
                moves.end_chain(&mut chain, sorted, base);
            }
            if sorted.is_replaced(at) {
                continue;
            }
            let version = sorted.version(at);
            if version.will_init {
                moves.end_chain(&mut chain, sorted, base);
            }
            chain.push((at, version.extent));
        }
        moves.end_chain(&mut chain, sorted, base);
        moves
    }

    /// All values that count, in order: none stays. Their positions are not set. `None` if they are too many.
    pub(super) fn of_all(sorted: &Sorted) -> Option<Self> {
        let mut moves = Self { places: vec![STAYS; sorted.len()], rounds: vec![0, 0] };
        for at in (0..sorted.len()).filter(|at| !sorted.is_replaced(*at)) {
            moves.places[sorted.number(at)] = moves.add(u64::from(sorted.version(at).extent.len))?;
        }
        Some(moves)
    }

    fn end_chain(&mut self, chain: &mut Vec<(usize, Extent)>, sorted: &mut Sorted, base: u64) {
        if chain.len() > 1 && is_scattered(chain) {
            for (at, extent) in chain.iter().filter(|(_, extent)| extent.len <= MOVED_LEN_MAX) {
                let Some(place) = self.add(u64::from(extent.len)) else { break };
                self.places[sorted.number(*at)] = place;
                sorted.set_position(*at, base + u64::from(place));
            }
        }
        chain.clear();
    }

    /// The place in the moved bytes of the next value, which is `len` bytes long.
    fn add(&mut self, len: u64) -> Option<u32> {
        let [.., start, end] = self.rounds[..] else { return None };
        let place = u32::try_from(end).ok().filter(|place| *place != STAYS)?;
        if end + len - start > ROUND_BYTES_MAX && end > start {
            self.rounds.push(end);
        }
        *self.rounds.last_mut()? = end + len;
        Some(place)
    }

    /// Appends the moved values to `writer`. `index` must be the one from which `plan` was made.
    pub(super) async fn make(
        &self,
        index: &RwLock<ValueIndex>,
        source: &BlockSource,
        writer: &mut BlockWriter,
    ) -> Result<(), StorageError> {
        for round in self.rounds.windows(2) {
            let &[start, end] = round else { continue };
            if start < end {
                let chunks = self.gather(start..end, index, source).await?;
                for chunk in &chunks {
                    writer.append(chunk).await?;
                }
                CHUNKS.give(chunks);
            }
        }
        Ok(())
    }

    /// The moved bytes of a round.
    async fn gather(
        &self,
        round: Range<u64>,
        index: &RwLock<ValueIndex>,
        source: &BlockSource,
    ) -> Result<Vec<AlignedBuf>, StorageError> {
        let mut out = Chunks::new((round.end - round.start) as usize);
        let mut started = self.start_group(0, &round, index, source);
        while let Some(Group { extents, targets, next, reading }) = started {
            let (blocks, _) = reading.finish().await?;
            // Keeps the disk busy while values are copied.
            started = self.start_group(next, &round, index, source);
            for (extent, to) in extents.iter().zip(targets) {
                if !out.put(to, *extent, &blocks) {
                    return Err(source.corrupt(layer_format::block::block_of(extent.position), "the file ends early"));
                }
            }
        }
        Ok(out.bufs)
    }

    /// Starts reading values of the round from arrival number `first` on, as many as are read together; `None` if
    /// there are no more.
    fn start_group<'a>(
        &self,
        first: usize,
        round: &Range<u64>,
        index: &RwLock<ValueIndex>,
        source: &'a BlockSource,
    ) -> Option<Group<'a>> {
        let index = index.read();
        let (mut extents, mut targets): (Vec<Extent>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut next = self.places.len();
        for (number, place) in self.places.iter().enumerate().skip(first) {
            if *place == STAYS || !round.contains(&u64::from(*place)) {
                continue;
            }
            let extent = index.extent(number);
            if extents.first().is_some_and(|group| extent.position >= group.position + READ_BYTES_MAX) {
                next = number;
                break;
            }
            extents.push(extent);
            targets.push((u64::from(*place) - round.start) as usize);
        }
        let reading = source.start_reading(&extents, Pace::Full);
        (!extents.is_empty()).then_some(Group { extents, targets, next, reading })
    }
}

/// Whether whoever reads all values in order takes longer for those that lie apart than it takes to copy all.
pub(super) fn is_mostly_scattered(sorted: &Sorted) -> bool {
    let (mut apart, mut bytes, mut end) = (0, 0, None);
    for extent in sorted.iter().map(|version| version.extent) {
        let follows = end.is_some_and(|end| (end..=end + SPAN_MAX).contains(&extent.position));
        apart += u64::from(!follows);
        bytes += u64::from(extent.len);
        end = Some(extent.position + u64::from(extent.len));
    }
    // A layer that large has more bytes than places.
    apart * SCATTERED_BYTES > 2 * bytes && bytes < u64::from(STAYS)
}

/// Appends all values that count to `writer`, in order, from `blocks`, which are all of the layer.
pub(super) async fn copy_in_order(
    sorted: &Sorted,
    blocks: &Blocks,
    writer: &mut BlockWriter,
) -> Result<(), StorageError> {
    let mut piece = Vec::with_capacity(COPIED_AT_ONCE);
    for extent in sorted.iter().map(|version| version.extent) {
        if !blocks.pieces(extent, |bytes| piece.extend_from_slice(bytes)) {
            return Err(StorageError::Internal("a value is not in memory".to_owned()));
        }
        if piece.len() >= COPIED_AT_ONCE {
            writer.append(&piece).await?;
            piece.clear();
            tokio::task::yield_now().await;
        }
    }
    writer.append(&piece).await
}

/// Values being read together.
struct Group<'a> {
    extents: Vec<Extent>,
    /// The offset of each in the round's moved bytes.
    targets: Vec<usize>,
    /// The arrival number at which the next group begins.
    next: usize,
    reading: Reading<'a>,
}

/// A run of bytes in reusable buffers of one size.
struct Chunks {
    bufs: Vec<AlignedBuf>,
}

impl Chunks {
    fn new(len: usize) -> Self {
        let mut bufs = CHUNKS.take();
        bufs.resize_with(len.div_ceil(CHUNK_BYTES), || AlignedBuf::with_capacity(CHUNK_BYTES));
        for (buf, start) in bufs.iter_mut().zip((0..len).step_by(CHUNK_BYTES)) {
            buf.whole_mut();
            buf.set_len(CHUNK_BYTES.min(len - start));
        }
        Self { bufs }
    }

    /// Copies the bytes of `extent` to offset `to`. Returns whether `blocks` has all of them.
    fn put(&mut self, to: usize, extent: Extent, blocks: &Blocks) -> bool {
        let (number, offset, len) = (to / CHUNK_BYTES, to % CHUNK_BYTES, extent.len as usize);
        if let Some(target) = self.bufs.get_mut(number).and_then(|buf| buf.get_mut(offset..offset + len)) {
            return blocks.copy_to(extent, target);
        }
        let (mut at, mut fits) = (to, true);
        let all = blocks.pieces(extent, |piece| {
            fits &= self.put_bytes(at, piece);
            at += piece.len();
        });
        all && fits
    }

    /// Copies `bytes` to offset `to`. Returns whether there is room.
    fn put_bytes(&mut self, to: usize, bytes: &[u8]) -> bool {
        let (mut at, mut rest) = (to, bytes);
        while !rest.is_empty() {
            let (number, offset) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
            let (now, later) = rest.split_at(rest.len().min(CHUNK_BYTES - offset));
            match self.bufs.get_mut(number).and_then(|buf| buf.get_mut(offset..offset + now.len())) {
                Some(target) => target.copy_from_slice(now),
                None => return false,
            }
            (at, rest) = (at + now.len(), later);
        }
        true
    }
}

fn is_scattered(chain: &[(usize, Extent)]) -> bool {
    // They are in LSN order, and therefore in order of position.
    let (Some((_, first)), Some((_, last))) = (chain.first(), chain.last()) else { return false };
    let span = (last.position + u64::from(last.len)).saturating_sub(first.position);
    span > SPAN_MAX && span > SPAN_MAX + chain.iter().map(|(_, extent)| u64::from(extent.len)).sum::<u64>()
}

#[cfg(test)]
mod tests {
    use pageserver_api::key::CompactKey;
    use utils::lsn::Lsn;

    use super::*;

    #[test]
    fn only_scattered_changes_move() {
        let far = 1 << 20;
        let values = [
            // Two images: each is read alone.
            (1, 1, 0, 100, true),
            // Adjacent changes.
            (2, 1, 200, 100, false),
            (2, 2, 300, 100, false),
            // A large image stays, the changes far from it move.
            (3, 1, 400, 8204, true),
            (1, 2, far, 100, true),
            (3, 2, far * 2, 100, false),
            (3, 3, far * 3, 120, false),
            // Of two with the same LSN, the second one counts, and moves; the first stays, as nobody reads it.
            (4, 1, far * 4, 100, false),
            (4, 2, far * 4 + 100, 50, false),
            (4, 2, far * 5, 60, false),
        ];
        let mut index = ValueIndex::default();
        for (key, lsn, position, len, will_init) in values {
            index.push(CompactKey::from(key), Lsn(lsn), position, len, will_init);
        }
        let mut sorted = index.sorted();
        let moves = Moves::plan(&mut sorted, 10 * far);
        let expected = [STAYS, STAYS, STAYS, STAYS, STAYS, 0, 100, 220, STAYS, 320];
        assert_eq!((&moves.places[..], &moves.rounds[..]), (&expected[..], &[0, 380][..]));
        let positions: Vec<u64> = sorted.iter().map(|version| version.extent.position).collect();
        let base = 10 * far;
        assert_eq!(positions, [0, far, 200, 300, 400, base, base + 100, base + 220, base + 320]);
    }
}
