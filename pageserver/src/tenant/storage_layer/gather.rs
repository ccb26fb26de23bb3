//! Brings chains of changes together when an in-memory layer is sealed.
//!
//! Values lie in the file in order of arrival. A page's image and a bulk load's values may stay there: a read needs one
//! of them. But the many small changes of a hot page would cost a read each, so those are copied behind the values,
//! key by key, and the index points to the copies. Only what is scattered is written twice.

use super::block_source::{BlockSource, Extent};
use super::block_writer::BlockWriter;
use super::value_index::Version;
use crate::errors::StorageError;

/// Changes longer than this stay in place: reading them is dominated by their bytes.
const MOVED_LEN_MAX: u32 = 2048;
/// A chain whose changes lie within so many bytes costs one read where it is.
const SPAN_MAX: u64 = 16 << 10;
/// Bytes of moved values in memory at most.
const ROUND_BYTES_MAX: u64 = 32 << 20;
/// Bytes read from the values at once.
const READ_BYTES_MAX: u64 = 4 << 20;

/// Values to be moved: their number in sorted order, and where they are, in sorted order.
pub(super) type Moves = Vec<(usize, Extent)>;

/// Finds scattered chains among `versions`, which come in order of (key, LSN).
pub(super) fn plan_moves(versions: impl Iterator<Item = Version>) -> Moves {
    let mut moves = Vec::new();
    let mut chain: Vec<(usize, Extent)> = Vec::new();
    let mut key = None;
    for (at, version) in versions.enumerate() {
        if key != Some(version.key) || version.will_init {
            end_chain(&mut chain, &mut moves);
            key = Some(version.key);
        }
        chain.push((at, version.extent));
    }
    end_chain(&mut chain, &mut moves);
    moves
}

fn end_chain(chain: &mut Vec<(usize, Extent)>, moves: &mut Moves) {
    if chain.len() > 1 && is_scattered(chain) {
        moves.extend(chain.iter().filter(|(_, extent)| extent.len <= MOVED_LEN_MAX));
    }
    chain.clear();
}

fn is_scattered(chain: &[(usize, Extent)]) -> bool {
    let start = chain.iter().map(|(_, extent)| extent.position).min();
    let end = chain.iter().map(|(_, extent)| extent.position + u64::from(extent.len)).max();
    let bytes: u64 = chain.iter().map(|(_, extent)| u64::from(extent.len)).sum();
    start.zip(end).is_some_and(|(start, end)| end - start > bytes + SPAN_MAX)
}

/// Appends the values of `moves` to `writer`, in their order. Returns each one's number and new position.
pub(super) async fn gather_chains(
    source: &BlockSource,
    writer: &mut BlockWriter,
    moves: Moves,
) -> Result<Vec<(usize, u64)>, StorageError> {
    let mut moved = Vec::with_capacity(moves.len());
    let mut rest = moves.as_slice();
    while !rest.is_empty() {
        let (round, later) = rest.split_at(round_len(rest));
        let gathered = read_scattered(source, round).await?;
        let mut position = writer.position();
        for (number, extent) in round {
            moved.push((*number, position));
            position += u64::from(extent.len);
        }
        writer.append(&gathered).await?;
        rest = later;
    }
    Ok(moved)
}

fn round_len(moves: &[(usize, Extent)]) -> usize {
    let mut bytes = 0;
    let fits = |(_, extent): &&(usize, Extent)| {
        bytes += u64::from(extent.len);
        bytes <= ROUND_BYTES_MAX
    };
    moves.iter().take_while(fits).count().max(1)
}

/// The values of `round`, back to back in its order, read in order of their places.
async fn read_scattered(source: &BlockSource, round: &[(usize, Extent)]) -> Result<Vec<u8>, StorageError> {
    let mut out_len = 0;
    let mut by_place: Vec<(Extent, usize)> = Vec::with_capacity(round.len());
    for (_, extent) in round {
        by_place.push((*extent, out_len));
        out_len += extent.len as usize;
    }
    by_place.sort_unstable();
    let mut out = vec![0; out_len];
    let mut rest = by_place.as_slice();
    while let Some((first, _)) = rest.first() {
        let near = rest.partition_point(|(extent, _)| extent.position < first.position + READ_BYTES_MAX);
        let (group, later) = rest.split_at(near.max(1));
        let extents: Vec<Extent> = group.iter().map(|(extent, _)| *extent).collect();
        let (blocks, _) = source.read(&extents).await?;
        for (extent, to) in group {
            let target = &mut out[*to..*to + extent.len as usize];
            if !blocks.copy_to(*extent, target) {
                return Err(source.corrupt(layer_format::block::block_of(extent.position), "the file ends early"));
            }
        }
        rest = later;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use pageserver_api::key::CompactKey;
    use utils::lsn::Lsn;

    use super::*;

    fn version(key: i128, lsn: u64, position: u64, len: u32, will_init: bool) -> Version {
        Version { key: CompactKey::from(key), lsn: Lsn(lsn), extent: Extent { position, len }, will_init }
    }

    #[test]
    fn only_scattered_changes_move() {
        let far = 1 << 20;
        let versions = vec![
            // Two images: each is read alone.
            version(1, 1, 0, 100, true),
            version(1, 2, far, 100, true),
            // Changes side by side.
            version(2, 1, 200, 100, false),
            version(2, 2, 300, 100, false),
            // A large image stays, its far changes move.
            version(3, 1, 400, 8204, true),
            version(3, 2, far * 2, 100, false),
            version(3, 3, far * 3, 100, false),
        ];
        let moves: Vec<usize> = plan_moves(versions.into_iter()).into_iter().map(|(at, _)| at).collect();
        assert_eq!(moves, [5, 6]);
    }
}
