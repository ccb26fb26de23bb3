//! Reuses the memory of uploaded parts for the next ones: fresh memory costs the kernel as much as reading into it.
//!
//! The memory is kept while uploads are under way, and freed with the last of them.

use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;

use virtual_file::AlignedBuf;

/// Finds the buffers shared by the uploads under way.
#[derive(Default)]
pub(super) struct PartBufferPool(Mutex<Weak<PartBuffers>>);

/// Unused buffers of the size of a part.
#[derive(Default)]
pub(super) struct PartBuffers(Mutex<Vec<AlignedBuf>>);

/// The contents of a part; its memory is reused once the request no longer needs it.
struct Part {
    buf: Option<AlignedBuf>,
    spare: Arc<PartBuffers>,
}

impl PartBufferPool {
    /// The shared buffers; each upload holds a reference.
    pub(super) fn share(&self) -> Arc<PartBuffers> {
        let mut known = self.0.lock();
        known.upgrade().unwrap_or_else(|| {
            let spare = Arc::default();
            *known = Arc::downgrade(&spare);
            spare
        })
    }
}

impl PartBuffers {
    /// An empty buffer for `len` bytes of a part of at most `part_size`. Much smaller buffers are allocated at their
    /// size.
    pub(super) fn take(&self, len: usize, part_size: usize) -> AlignedBuf {
        if len <= part_size / 2 {
            return AlignedBuf::with_capacity(len);
        }
        let spare = self.0.lock().pop();
        spare.filter(|buf| buf.capacity() >= len).unwrap_or_else(|| AlignedBuf::with_capacity(part_size.max(len)))
    }

    /// The contents of `buf`, whose memory is returned when they are dropped.
    pub(super) fn lend(self: &Arc<Self>, buf: AlignedBuf, part_size: usize) -> Bytes {
        if buf.capacity() < part_size {
            return Bytes::from_owner(buf);
        }
        Bytes::from_owner(Part { buf: Some(buf), spare: Arc::clone(self) })
    }
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        self.buf.as_deref().unwrap_or_default()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let Some(mut buf) = self.buf.take() else { return };
        // Old contents must not be mistaken for what is read into it next.
        buf.set_len(0);
        self.spare.0.lock().push(buf);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PART: usize = 64 << 10;

    fn filled(spare: &PartBuffers, len: usize) -> AlignedBuf {
        let mut buf = spare.take(len, PART);
        buf.extend_with_zeros(len);
        buf
    }

    #[test]
    fn memory_comes_back_empty_and_goes_with_the_last_upload() {
        let spares = PartBufferPool::default();
        let (spare, other) = (spares.share(), spares.share());
        assert!(Arc::ptr_eq(&spare, &other));
        let first = spare.lend(filled(&spare, PART), PART);
        let (address, part) = (first.as_ptr(), first.slice(1..10));
        drop(first);
        assert!(spare.0.lock().is_empty(), "some of it is in use");
        drop(part);
        let again = spare.take(PART - 4096, PART);
        assert_eq!((again.as_ptr(), again.len()), (address, 0));
        drop(spare.lend(again, PART));
        assert!(!filled(&spare, 4096).is_empty(), "a small one");
        assert_eq!(spare.0.lock().len(), 1, "is not taken from what is for parts");
        drop(other.lend(filled(&other, 4096), PART));
        assert_eq!(spare.0.lock().len(), 1, "nor kept for them");
        let before = Arc::downgrade(&spare);
        drop((spare, other));
        assert!(before.upgrade().is_none(), "nothing is kept between uploads");
        assert!(spares.share().0.lock().is_empty());
    }
}
