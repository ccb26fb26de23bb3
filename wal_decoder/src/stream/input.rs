//! The fed pieces as one byte sequence that begins at an LSN.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use utils::lsn::Lsn;

/// Bytes that were fed and not consumed yet.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// No piece is empty.
    pieces: VecDeque<Bytes>,
    len: usize,
    lsn: Lsn,
}

impl Input {
    pub(super) fn new(lsn: Lsn) -> Self {
        Self { pieces: VecDeque::new(), len: 0, lsn }
    }

    pub(super) fn push(&mut self, piece: Bytes) {
        if !piece.is_empty() {
            self.len += piece.len();
            self.pieces.push_back(piece);
        }
    }

    /// LSN of the first unconsumed byte.
    pub(super) fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// LSN after the last byte.
    pub(super) fn end(&self) -> Lsn {
        Lsn(self.lsn.0 + self.len as u64)
    }

    /// The piece that begins at [`lsn`](Self::lsn).
    pub(super) fn front(&self) -> Option<&Bytes> {
        self.pieces.front()
    }

    /// Fills `out` with the next bytes without consuming them; false if there are not enough.
    pub(super) fn peek(&self, out: &mut [u8]) -> bool {
        if self.len < out.len() {
            return false;
        }
        let len = out.len();
        if let Some(bytes) = self.pieces.front().and_then(|front| front.get(..len)) {
            out.copy_from_slice(bytes);
        } else {
            let bytes = self.pieces.iter().flat_map(|piece| piece.iter());
            out.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        }
        true
    }

    /// Consumes the next `len` bytes, if there are as many: as a slice if they are in one piece, otherwise as a copy.
    pub(super) fn take(&mut self, len: usize) -> Option<Bytes> {
        if self.len < len {
            return None;
        }
        match self.pieces.front_mut() {
            Some(front) if front.len() >= len => {
                let taken = front.split_to(len);
                if front.is_empty() {
                    self.pieces.pop_front();
                }
                self.used(len);
                Some(taken)
            }
            _ => {
                let mut copy = Vec::with_capacity(len);
                self.take_into(&mut copy, len);
                Some(copy.into())
            }
        }
    }

    /// Consumes up to `len` of the next bytes and appends them to `out`; returns their number.
    pub(super) fn take_into(&mut self, out: &mut Vec<u8>, len: usize) -> usize {
        self.consume(len, |bytes| out.extend_from_slice(bytes))
    }

    /// Drops the bytes before `lsn`, or all if there are fewer.
    pub(super) fn skip_to(&mut self, lsn: Lsn) {
        let len = usize::try_from(lsn.0.saturating_sub(self.lsn.0)).unwrap_or(usize::MAX);
        self.consume(len, |_| ());
    }

    fn consume(&mut self, len: usize, mut each: impl FnMut(&[u8])) -> usize {
        let total = len.min(self.len);
        let mut left = total;
        while left > 0 {
            let Some(front) = self.pieces.front_mut() else { break };
            let here = left.min(front.len());
            each(front.get(..here).unwrap_or_default());
            front.advance(here);
            if front.is_empty() {
                self.pieces.pop_front();
            }
            left -= here;
        }
        self.used(total - left);
        total - left
    }

    fn used(&mut self, len: usize) {
        self.len -= len;
        self.lsn = Lsn(self.lsn.0 + len as u64);
    }
}
