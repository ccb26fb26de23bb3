//! Merges delta layers: all their versions in order of (key, LSN), in windows of bounded memory.
//!
//! In an L0 layer values lie in the order in which they arrived. So the values of a window are read in order of their
//! positions, which for small scattered ones comes to reading the whole layer once for each window, and put in their
//! places in memory: windows are as large as a job may be, and layers are read with long reads. While one window is
//! written the next one is read, so that a job uses the disk and a processor at the same time.

use std::collections::{BTreeMap, VecDeque};

use pageserver_api::key::CompactKey;
use utils::lsn::Lsn;

use super::block_source::{Extent, Reading};
use super::index_cursor::IndexCursor;
use crate::context::Pace;
use errors::StorageError;
use layer_format::block::block_of;

/// Values in the same stretch of so many bytes of a layer are read together.
const GROUP_SPAN: u64 = 4 << 20;
/// Stretches read at once.
const GROUPS_AT_ONCE: usize = 3;
/// Versions taken between two chances for other tasks.
const TAKEN_AT_ONCE: usize = 1024;

/// A version of a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Version {
    pub(crate) key: CompactKey,
    pub(crate) lsn: Lsn,
    /// Whether it needs no earlier version.
    pub(crate) will_init: bool,
    /// The length of its value in bytes.
    len: u32,
}

/// Where a value is in its layer, and where it goes in the window.
#[derive(Clone, Copy, Debug)]
struct Move {
    extent: Extent,
    to: usize,
}

/// All versions that the cursors of several delta layers find. No two of them may have the same key and LSN.
#[derive(Debug)]
pub(crate) struct VersionStream {
    inputs: Vec<Input>,
    /// Index pages of all inputs.
    pages: u64,
    /// Maximum bytes of values in a window; a single version may have more.
    bytes_max: usize,
    /// Maximum number of versions in a window.
    versions_max: usize,
}

#[derive(Debug)]
struct Input {
    cursor: IndexCursor,
    /// Of the window that is being read, by stretch of the layer: each is sorted when it is read, so that no step takes
    /// long.
    moves: BTreeMap<u64, Vec<Move>>,
}

/// Consecutive versions with their stored values. Its memory is used again by whoever reads another one into it.
#[derive(Debug, Default)]
pub(crate) struct Window {
    versions: Vec<Version>,
    /// Their stored values, back to back.
    values: Vec<u8>,
}

impl Window {
    pub(crate) fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// Each version with its stored value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Version, &[u8])> {
        let mut rest = self.values.as_slice();
        self.versions.iter().map_while(move |version| {
            let (value, later) = rest.split_at_checked(version.len as usize)?;
            rest = later;
            Some((version, value))
        })
    }
}

impl VersionStream {
    /// A stream of which two windows take at most `memory` bytes together, half of them for values: one can be read
    /// while the other is written.
    pub(crate) fn new(inputs: Vec<IndexCursor>, memory: u64) -> Self {
        let pages = inputs.iter().map(|cursor| u64::from(cursor.pages_left())).sum();
        let inputs = inputs.into_iter().map(|cursor| Input { cursor, moves: BTreeMap::new() }).collect();
        let quarter = usize::try_from(memory / 4).unwrap_or(usize::MAX);
        // A vector that grows may have twice the room it needs.
        let versions_max = quarter / (2 * (size_of::<Version>() + size_of::<Move>()));
        Self { inputs, pages, bytes_max: quarter, versions_max: versions_max.max(1) }
    }

    /// Reads the next versions into `window`, at the given pace. Returns false at the end, when there are none.
    pub(crate) async fn read_into(&mut self, window: &mut Window, pace: Pace) -> Result<bool, StorageError> {
        window.versions.clear();
        self.inputs.iter_mut().for_each(|input| input.moves.clear());
        let mut bytes = 0;
        while bytes < self.bytes_max && window.versions.len() < self.versions_max {
            let Some(version) = self.take(bytes).await? else { break };
            bytes += version.len as usize;
            window.versions.push(version);
            if window.versions.len().is_multiple_of(TAKEN_AT_ONCE) {
                tokio::task::yield_now().await;
            }
        }
        window.values.resize(bytes, 0);
        read(&mut self.inputs, &mut window.values, pace).await?;
        Ok(!window.versions.is_empty())
    }

    /// How much of all has been read, from 0 to 1.
    pub(crate) fn done(&self) -> f64 {
        let left: u64 = self.inputs.iter().map(|input| u64::from(input.cursor.pages_left())).sum();
        1.0 - left as f64 / self.pages.max(1) as f64
    }

    /// Takes the next version in order; its value goes to `to`.
    async fn take(&mut self, to: usize) -> Result<Option<Version>, StorageError> {
        let mut next: Option<(CompactKey, Lsn, usize)> = None;
        for (number, input) in self.inputs.iter_mut().enumerate() {
            input.cursor.fill().await?;
            let Some(entry) = input.cursor.peek() else { continue };
            if next.is_none_or(|(key, lsn, _)| (entry.key, entry.lsn) < (key, lsn)) {
                next = Some((entry.key, entry.lsn, number));
            }
        }
        let Some(input) = next.and_then(|(.., number)| self.inputs.get_mut(number)) else { return Ok(None) };
        let Some(entry) = input.cursor.peek().copied() else { return Ok(None) };
        input.cursor.advance();
        let group = input.moves.entry(entry.position / GROUP_SPAN).or_default();
        group.push(Move { extent: Extent { position: entry.position, len: entry.len }, to });
        Ok(Some(Version { key: entry.key, lsn: entry.lsn, will_init: entry.flag, len: entry.len }))
    }
}

/// Reads the values of the window and puts them in their places in `values`.
async fn read(inputs: &mut [Input], values: &mut [u8], pace: Pace) -> Result<(), StorageError> {
    let moves = |input: &mut Input| std::mem::take(&mut input.moves).into_values();
    let groups: Vec<_> = inputs.iter_mut().map(moves).collect();
    let mut groups = inputs.iter().zip(groups).flat_map(|(input, groups)| groups.map(|group| (&input.cursor, group)));
    // Keeps the disk busy while values are copied.
    let start = |(cursor, group)| Started::of(cursor, group, pace);
    let mut started: VecDeque<Started<'_>> = groups.by_ref().take(GROUPS_AT_ONCE).map(start).collect();
    while let Some(Started { cursor, group, reading }) = started.pop_front() {
        let (blocks, _) = reading.finish().await?;
        started.extend(groups.next().map(start));
        for Move { extent, to } in group {
            let target = values.get_mut(to..to + extent.len as usize);
            if !target.is_some_and(|target| blocks.copy_to(extent, target)) {
                let block = block_of(extent.position);
                return Err(cursor.source().corrupt(block, "the file ends inside a value"));
            }
        }
    }
    Ok(())
}

/// Values of one stretch of a layer that are being read.
struct Started<'a> {
    cursor: &'a IndexCursor,
    group: Vec<Move>,
    reading: Reading<'a>,
}

impl<'a> Started<'a> {
    fn of(cursor: &'a IndexCursor, mut group: Vec<Move>, pace: Pace) -> Self {
        group.sort_unstable_by_key(|it| it.extent.position);
        let extents: Vec<Extent> = group.iter().map(|it| it.extent).collect();
        Self { cursor, group, reading: cursor.source().start_reading(&extents, pace) }
    }
}
