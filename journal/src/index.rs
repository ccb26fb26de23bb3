//! Where in the journal each timeline's WAL is.

use std::collections::{HashMap, VecDeque};

use utils::lsn::Lsn;

use crate::batch::{Frame, Id, Kind};

/// A piece of WAL in the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) start: Lsn,
    len: u32,
    /// The number of its segment,
    pub(crate) segment: u64,
    /// where in that its batch begins,
    pub(crate) batch: u32,
    /// and where in the batch the WAL does.
    pub(crate) wal: u32,
}

impl Piece {
    /// The LSN behind it.
    pub(crate) fn end(&self) -> Lsn {
        self.start + u64::from(self.len)
    }

    /// Its bytes in its batch.
    pub(crate) fn of<'a>(&self, batch: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.wal as usize;
        batch.get(start..start + self.len as usize)
    }

    /// What of it is at `from` and later.
    fn cut(self, from: Lsn) -> Self {
        let skipped = u32::try_from(from.0.saturating_sub(self.start.0)).unwrap_or(self.len).min(self.len);
        Self { start: self.start + u64::from(skipped), len: self.len - skipped, wal: self.wal + skipped, ..self }
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Index {
    pieces: HashMap<Id, VecDeque<Piece>>,
}

impl Index {
    /// Notes a frame of the batch that begins at `batch` of `segment`. What it repeats is void from then on: WAL that
    /// is received again may go on in another way than what was received of an unfinished record before.
    pub(crate) fn note(&mut self, frame: &Frame, segment: u64, batch: u32) {
        let pieces = self.pieces.entry(frame.id).or_default();
        while pieces.back().is_some_and(|last| last.start >= frame.lsn) {
            pieces.pop_back();
        }
        if let Some(last) = pieces.back_mut().filter(|last| last.end() > frame.lsn) {
            last.len = u32::try_from(frame.lsn.0 - last.start.0).unwrap_or(last.len);
        }
        if frame.kind == Kind::Wal && !frame.wal.is_empty() {
            let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            let (len, wal) = (number(frame.wal.len()), number(frame.wal.start));
            pieces.push_back(Piece { start: frame.lsn, len, segment, batch, wal });
        }
        if pieces.is_empty() {
            self.pieces.remove(&frame.id);
        }
    }

    /// Forgets what is in segments before `first`.
    pub(crate) fn forget_before(&mut self, first: u64) {
        self.pieces.retain(|_, pieces| {
            while pieces.front().is_some_and(|piece| piece.segment < first) {
                pieces.pop_front();
            }
            !pieces.is_empty()
        });
    }

    /// The timelines whose WAL there is.
    pub(crate) fn ids(&self) -> impl Iterator<Item = Id> {
        self.pieces.keys().copied()
    }

    /// The last piece of a timeline.
    pub(crate) fn last(&self, id: &Id) -> Option<&Piece> {
        self.pieces.get(id)?.back()
    }

    /// The LSN behind the last piece of a timeline that is in the segment `number` or an earlier one.
    pub(crate) fn end_in(&self, id: &Id, number: u64) -> Option<Lsn> {
        let pieces = self.pieces.get(id)?;
        let count = pieces.partition_point(|piece| piece.segment <= number);
        pieces.get(count.checked_sub(1)?).map(Piece::end)
    }

    /// The pieces of a timeline from the byte at `from` on, without a gap.
    pub(crate) fn from(&self, id: &Id, from: Lsn) -> VecDeque<Piece> {
        let mut next = from;
        let pieces = self.pieces.get(id).into_iter().flatten().skip_while(|piece| piece.end() <= from);
        let without_gap = pieces.map(|piece| piece.cut(from)).take_while(|piece| {
            let follows = piece.start == next;
            next = piece.end();
            follows
        });
        without_gap.collect()
    }
}

#[cfg(test)]
mod tests {
    use utils::id::{TenantId, TimelineId};
    use utils::shard::TenantShardId;

    use super::*;

    fn id(number: u8) -> Id {
        let tenant = TenantShardId::unsharded(TenantId::from([number; 16]));
        Id { tenant, timeline: TimelineId::from([0; 16]) }
    }

    fn note(index: &mut Index, id: Id, start: u64, len: usize, segment: u64) {
        let kind = if len == 0 { Kind::Void } else { Kind::Wal };
        index.note(&Frame { id, kind, lsn: Lsn(start), wal: 100..100 + len }, segment, 4096);
    }

    fn found(index: &Index, id: Id, from: u64) -> Vec<(u64, u64)> {
        index.from(&id, Lsn(from)).iter().map(|piece| (piece.start.0, piece.end().0)).collect()
    }

    #[test]
    fn pieces_are_found_from_anywhere_without_a_gap() {
        let (mut index, one, other) = (Index::default(), id(1), id(2));
        note(&mut index, one, 1000, 100, 1);
        note(&mut index, other, 500, 10, 1);
        note(&mut index, one, 1100, 50, 2);
        note(&mut index, one, 1200, 50, 2);
        assert_eq!(found(&index, one, 1000), [(1000, 1100), (1100, 1150)]);
        assert_eq!(found(&index, one, 1120), [(1120, 1150)]);
        let cut = index.from(&one, Lsn(1120))[0];
        assert_eq!((cut.wal, cut.segment, cut.batch), (120, 2, 4096));
        assert_eq!(found(&index, one, 1150), []);
        assert_eq!(found(&index, one, 1200), [(1200, 1250)]);
        assert_eq!(found(&index, one, 900), []);
        assert_eq!((index.end_in(&one, 1), index.end_in(&one, 2)), (Some(Lsn(1100)), Some(Lsn(1250))));
        assert_eq!(index.end_in(&one, 0), None);
        index.forget_before(2);
        assert_eq!(found(&index, one, 1000), []);
        assert_eq!(found(&index, one, 1100), [(1100, 1150)]);
        assert_eq!(index.last(&other), None);
    }

    #[test]
    fn what_comes_again_replaces_what_was_there() {
        let (mut index, one) = (Index::default(), id(1));
        note(&mut index, one, 1000, 100, 1);
        note(&mut index, one, 1100, 100, 1);
        note(&mut index, one, 1050, 20, 1);
        assert_eq!(found(&index, one, 1000), [(1000, 1050), (1050, 1070)]);
        note(&mut index, one, 1060, 0, 1);
        assert_eq!(found(&index, one, 1000), [(1000, 1050), (1050, 1060)]);
        note(&mut index, one, 0, 0, 1);
        assert_eq!(index.last(&one), None);
    }
}
