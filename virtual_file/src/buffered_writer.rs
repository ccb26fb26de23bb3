//! Appends to a file through aligned buffers: one is being filled while others are being written.
//!
//! A write starts the moment a buffer is full, from the thread that filled it, so no other task has to be woken.
//! Bytes that are not on disk yet can be read from memory. After an error everything stays in memory, and the next
//! call retries. A writer that holds its writes back ([`BufferedWriter::hold`]) starts them when there is no memory
//! left, or when it is asked to: a file that is not needed in the end is never written then.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use parking_lot::RwLock;

use super::VirtualFile;
use super::buffer::AlignedBuf;
use super::engine::IoFuture;
use super::kept_memory::KeptMemory;
use errors::StorageError;

/// Size of a writer's first buffer in bytes; later ones grow with the file, so that many small files stay cheap.
const BUFFER_MIN: usize = 64 << 10;
/// Size of the buffers of a large file in bytes: a huge page, in which a value is found without a walk through page
/// tables.
const BUFFER_MAX: usize = 2 << 20;
/// Maximum number of writes in flight.
const IN_FLIGHT_MAX: usize = 3;
/// Size in bytes of the buffers of a writer that gives way.
const BUFFER_GIVING_WAY: usize = 128 << 10;

/// How to treat the last, incomplete buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Discard it.
    DropTail,
    /// Pad it with zeros to the alignment of direct I/O.
    PadTail,
    /// Pad it, write it, then truncate the file to the exact length.
    PadThenTruncate,
}

/// The bytes of a file that are in memory: those that are not written yet, preceded by the most recently written
/// ones.
#[derive(Debug)]
pub struct Tail {
    /// Full buffers, in ascending order of offset.
    full: VecDeque<(u64, Arc<AlignedBuf>)>,
    /// How many of them, at the front, are on disk and kept for readers.
    kept: usize,
    mutable: AlignedBuf,
    mutable_offset: u64,
    /// Where memory comes from for all full buffers, as long as there is enough.
    shared: Option<Arc<KeptMemory>>,
    /// There was not enough: what was taken is given back as writes complete.
    is_refused: bool,
    /// Bytes that were taken from there.
    taken: u64,
}

impl Tail {
    /// First offset in memory; everything before it is on disk.
    pub fn start(&self) -> u64 {
        if fault::planted(fault::Bug::ReadBehindWrite) {
            return self.mutable_offset;
        }
        self.full.front().map_or(self.mutable_offset, |(offset, _)| *offset)
    }

    /// The offset at which unwritten bytes begin.
    fn unwritten(&self) -> u64 {
        self.full.get(self.kept).map_or(self.mutable_offset, |(offset, _)| *offset)
    }

    /// Takes memory for a buffer of `bytes` that is full. Returns whether there was enough, for this one and for all
    /// before.
    fn take(&mut self, bytes: u64) -> bool {
        let enough = !self.is_refused && self.shared.as_ref().is_some_and(|shared| shared.take(bytes));
        match enough {
            true => self.taken += bytes,
            false => self.refuse(),
        }
        enough
    }

    /// Records that the oldest write has completed. Returns buffers that are no longer needed, if more than `keep`
    /// written bytes are in memory, and there is none for all.
    fn retire(&mut self, keep: u64) -> Vec<Arc<AlignedBuf>> {
        self.kept += 1;
        if self.shared.is_some() && !self.is_refused {
            return Vec::new();
        }
        self.refuse();
        let mut done = Vec::new();
        while let Some(first) = self.full.front().map(|(offset, _)| *offset)
            && self.kept > 0
            && self.unwritten() - first > keep
        {
            self.kept -= 1;
            done.extend(self.full.pop_front().map(|(_, buf)| buf));
        }
        done
    }

    /// Keeps no more than the newest bytes from now on, and those that were held back until they are written.
    fn refuse(&mut self) {
        self.is_refused = true;
        if let Some(shared) = &self.shared {
            let waiting = self.full.iter().skip(self.kept + IN_FLIGHT_MAX).map(|(_, buf)| buf.len() as u64).sum();
            let surplus = self.taken.saturating_sub(waiting);
            shared.give_back(surplus, std::iter::empty());
            self.taken -= surplus;
        }
        if self.taken == 0 {
            self.shared = None;
        }
    }

    /// Buffers that change no more, from [`Tail::start`] on, with their offsets.
    pub fn full(&self) -> impl Iterator<Item = (u64, &Arc<AlignedBuf>)> {
        self.full.iter().map(|(offset, buf)| (*offset, buf))
    }

    /// What follows these, with its offset.
    pub fn last(&self) -> (u64, &[u8]) {
        (self.mutable_offset, &self.mutable)
    }

    /// Up to `len` bytes at `offset`, which must not be below [`Tail::start`]; no more than one buffer holds.
    pub fn bytes_at(&self, offset: u64, len: usize) -> &[u8] {
        let (start, buf) = if offset >= self.mutable_offset {
            (self.mutable_offset, &self.mutable)
        } else {
            let at = self.full.partition_point(|(start, _)| *start <= offset).saturating_sub(1);
            self.full.get(at).map_or((self.mutable_offset, &self.mutable), |(start, buf)| (*start, buf.as_ref()))
        };
        let from = usize::try_from(offset.saturating_sub(start)).unwrap_or(usize::MAX).min(buf.len());
        &buf[from..from.saturating_add(len).min(buf.len())]
    }
}

/// The next file's writer takes the buffers.
impl Drop for Tail {
    fn drop(&mut self) {
        let bufs = self.full.drain(..).filter_map(|(_, buf)| Arc::into_inner(buf));
        match self.shared.take() {
            Some(shared) => shared.give_back(self.taken, bufs),
            None => bufs.for_each(AlignedBuf::recycle),
        }
    }
}

enum WriteState {
    /// Not started yet.
    Held,
    Running(IoFuture<()>),
    Failed,
}

/// See the module's documentation.
pub struct BufferedWriter {
    file: Arc<VirtualFile>,
    tail: Arc<RwLock<Tail>>,
    /// States of the writes of full buffers that are not on disk yet, in the same order.
    writes: VecDeque<WriteState>,
    /// Buffers allocated by [`BufferedWriter::reserve`]; the last one is used next.
    spare: Vec<AlignedBuf>,
    start: u64,
    /// Number of written bytes to keep in memory.
    keep: u64,
    /// Size in bytes of the largest buffers.
    buffer_max: usize,
    in_flight_max: usize,
    /// Writes are not started as long as there is memory for what is not written.
    holds: bool,
}

impl BufferedWriter {
    /// Appends starting at `start`, which must be a multiple of the file's alignment.
    pub fn new(file: Arc<VirtualFile>, start: u64) -> Self {
        debug_assert!(start.is_multiple_of(file.align()));
        let mutable = AlignedBuf::with_capacity(BUFFER_MIN.max(file.align() as usize));
        let tail = Tail {
            full: VecDeque::new(),
            kept: 0,
            mutable,
            mutable_offset: start,
            shared: None,
            is_refused: false,
            taken: 0,
        };
        Self {
            file,
            tail: Arc::new(RwLock::new(tail)),
            writes: VecDeque::new(),
            spare: Vec::new(),
            start,
            keep: 0,
            buffer_max: BUFFER_MAX,
            in_flight_max: IN_FLIGHT_MAX,
            holds: false,
        }
    }

    /// Size in bytes of the largest pieces that it writes.
    pub fn piece_max(&self) -> usize {
        self.buffer_max
    }

    /// Writes small pieces from now on, one at a time: a read that comes meanwhile waits behind them in the device's
    /// queue. For files that nobody waits for.
    pub fn give_way(&mut self) {
        (self.buffer_max, self.in_flight_max) = (BUFFER_GIVING_WAY, 1);
    }

    /// Keeps about this many of the most recently written bytes in memory, for readers.
    pub fn keep_written(&mut self, bytes: u64) {
        self.keep = bytes;
    }

    /// Keeps all that is written in memory as long as `shared` has enough; then no more than
    /// [`BufferedWriter::keep_written`] says. To be called before anything is written.
    pub fn keep_all(&mut self, shared: Arc<KeptMemory>) {
        self.tail.write().shared = Some(shared);
    }

    /// Starts no write from now on as long as there is memory for all ([`BufferedWriter::keep_all`]): for a file that
    /// is likely not needed in the end.
    pub fn hold(&mut self) {
        self.holds = true;
    }

    /// Starts writing what is held back, and holds nothing back any more.
    pub fn release(&mut self) {
        self.holds = false;
        self.start_due();
    }

    /// The file.
    pub fn file(&self) -> &Arc<VirtualFile> {
        &self.file
    }

    /// The bytes in memory, for readers.
    pub fn tail(&self) -> &Arc<RwLock<Tail>> {
        &self.tail
    }

    /// The offset of the next byte.
    pub fn position(&self) -> u64 {
        let tail = self.tail.read();
        tail.mutable_offset + tail.mutable.len() as u64
    }

    fn new_buffer(&self) -> AlignedBuf {
        let size = self.buffer_size(self.position());
        match &self.tail.read().shared {
            Some(shared) => shared.buffer(size),
            None => AlignedBuf::with_capacity(size),
        }
    }

    fn buffer_size(&self, position: u64) -> usize {
        let written = usize::try_from(position - self.start).unwrap_or(usize::MAX);
        let size = written.clamp(BUFFER_MIN, self.buffer_max);
        (if size.is_power_of_two() { size } else { size.next_power_of_two() / 2 }).max(self.file.align() as usize)
    }

    /// Makes room for `len` more bytes, so that pushing them neither waits nor fails. Waits for the disk if the
    /// maximum number of writes is in flight, or more were held back than there is memory for. On error nothing is
    /// lost; the next call retries failed writes.
    pub async fn reserve(&mut self, len: usize) -> Result<(), StorageError> {
        let mut room = self.tail.read().mutable.room() + self.spare.iter().map(AlignedBuf::capacity).sum::<usize>();
        // One that is filled to its end is replaced at once: by a spare one, or the limits would not hold.
        while room <= len {
            let is_busy = self.writes.len() + self.spare.len() >= self.in_flight_max && !self.writes.is_empty();
            if is_busy && !self.holds {
                self.retire_oldest().await?;
                continue;
            }
            let buf = self.new_buffer();
            room += buf.capacity();
            self.spare.insert(0, buf);
        }
        Ok(())
    }

    /// Appends `bytes`. There must be room for them ([`BufferedWriter::reserve`]).
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) {
        let mut tail = self.tail.write();
        let mut rest = bytes;
        loop {
            let (now, later) = rest.split_at(rest.len().min(tail.mutable.room()));
            tail.mutable.extend_from_slice(now);
            if tail.mutable.room() == 0 {
                let next = self.spare.pop().unwrap_or_else(|| AlignedBuf::with_capacity(BUFFER_MIN));
                freeze(&self.file, &mut self.writes, &mut tail, next, &mut self.holds);
            }
            if later.is_empty() {
                return;
            }
            rest = later;
        }
    }

    /// Makes the kernel start writing back its cached pages of the file, so that a later sync has less to do.
    pub fn start_writeback(&self) {
        let written = self.tail.read().unwritten();
        // Nobody waits for this; the sync does.
        drop(self.file.start_writeback(self.start, written - self.start));
    }

    /// Waits until all full buffers are on disk.
    pub async fn flush_full_buffers(&mut self) -> Result<(), StorageError> {
        self.release();
        while !self.writes.is_empty() {
            self.retire_oldest().await?;
        }
        Ok(())
    }

    /// Finishes writing according to `mode` and returns the file's length. May be called again after an error.
    pub async fn shutdown(&mut self, mode: Shutdown) -> Result<u64, StorageError> {
        let exact = self.position();
        match mode {
            Shutdown::DropTail => {
                let mut tail = self.tail.write();
                tail.mutable = AlignedBuf::with_capacity(BUFFER_MIN);
            }
            Shutdown::PadTail | Shutdown::PadThenTruncate => self.freeze_padded(),
        }
        self.flush_full_buffers().await?;
        if mode == Shutdown::PadThenTruncate {
            self.file.set_len(exact).await?;
            return Ok(exact);
        }
        Ok(self.position())
    }

    fn freeze_padded(&mut self) {
        let mut tail = self.tail.write();
        let len = tail.mutable.len();
        if len == 0 {
            return;
        }
        tail.mutable.extend_with_zeros(len.next_multiple_of(self.file.align() as usize) - len);
        let next = self.spare.pop().unwrap_or_else(|| AlignedBuf::with_capacity(BUFFER_MIN));
        freeze(&self.file, &mut self.writes, &mut tail, next, &mut self.holds);
    }

    /// Waits for the oldest write, after starting all that are due.
    async fn retire_oldest(&mut self) -> Result<(), StorageError> {
        self.start_due();
        let result = match self.writes.front_mut() {
            Some(WriteState::Running(write)) => poll_fn(|cx| write.as_mut().poll(cx)).await,
            _ => return Ok(()),
        };
        match result.or_else(|error| if fault::planted(fault::Bug::SwallowWriteError) { Ok(()) } else { Err(error) }) {
            Ok(()) => {
                self.writes.pop_front();
                let done = self.tail.write().retire(self.keep);
                done.into_iter().filter_map(Arc::into_inner).for_each(AlignedBuf::recycle);
                Ok(())
            }
            Err(source) => Err(self.note_failure(source)),
        }
    }

    fn note_failure(&mut self, source: io::Error) -> StorageError {
        if let Some(front) = self.writes.front_mut() {
            *front = WriteState::Failed;
        }
        self.file.error("write", self.tail.read().unwritten(), source)
    }

    /// Starts the oldest writes that were held back or have failed, as many as may be in flight.
    fn start_due(&mut self) {
        let tail = self.tail.read();
        let writes = self.writes.iter_mut().take(self.in_flight_max);
        for (state, (offset, buf)) in writes.zip(tail.full.iter().skip(tail.kept)) {
            if !matches!(state, WriteState::Running(_)) {
                *state = WriteState::Running(self.file.start_write(*offset, Arc::clone(buf), buf.len()));
            }
        }
    }
}

/// Starts writing the filled buffer, unless it is held back or behind others that are, and puts `next` in its place.
/// Where there is no memory for more, `holds` is false after that.
fn freeze(file: &VirtualFile, writes: &mut VecDeque<WriteState>, tail: &mut Tail, next: AlignedBuf, holds: &mut bool) {
    let full = Arc::new(std::mem::replace(&mut tail.mutable, next));
    let offset = tail.mutable_offset;
    tail.mutable_offset += full.len() as u64;
    tail.full.push_back((offset, Arc::clone(&full)));
    *holds &= tail.take(full.len() as u64);
    let waits = *holds || matches!(writes.back(), Some(WriteState::Held));
    writes.push_back(match waits {
        true => WriteState::Held,
        false => WriteState::Running(file.start_write(offset, Arc::clone(&full), full.len())),
    });
}

impl std::fmt::Debug for BufferedWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BufferedWriter").field("file", &self.file).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OpenMode;

    /// Most writes in flight, and the largest piece, while 4 MiB are written in small steps; then what is in the file.
    async fn written(path: &camino::Utf8Path, gives_way: bool) -> (usize, usize, Vec<u8>) {
        let file = Arc::new(VirtualFile::open(path, OpenMode::CreateNew).await.unwrap());
        let mut writer = BufferedWriter::new(file, 0);
        if gives_way {
            writer.give_way();
        }
        let (mut in_flight, mut piece) = (0, 0);
        for number in 0..1024u32 {
            let bytes = number.to_le_bytes().repeat(1024);
            writer.reserve(bytes.len()).await.unwrap();
            writer.push(&bytes);
            in_flight = in_flight.max(writer.writes.len());
            piece = piece.max(writer.tail.read().mutable.capacity());
        }
        writer.shutdown(Shutdown::PadTail).await.unwrap();
        (in_flight, piece, std::fs::read(path).unwrap())
    }

    /// Of two writers that take turns, the second one begins when the first is half way: for how many of its bytes
    /// each has memory at the end, and what they share then. With `holds` they write as late as possible.
    async fn kept(limit: u64, holds: bool) -> ([u64; 2], u64) {
        let dir = camino_tempfile::tempdir().unwrap();
        let shared = Arc::new(KeptMemory::new(limit));
        let mut writers = Vec::new();
        for name in ["one", "other"] {
            let file = Arc::new(VirtualFile::open(&dir.path().join(name), OpenMode::CreateNew).await.unwrap());
            let mut writer = BufferedWriter::new(file, 0);
            writer.keep_written(1 << 20);
            writer.keep_all(Arc::clone(&shared));
            if holds {
                writer.hold();
            }
            writers.push(writer);
        }
        for step in 0..1536u64 {
            for (number, writer) in writers.iter_mut().enumerate() {
                if (number == 0 && step < 1024) || (number == 1 && step >= 512) {
                    writer.reserve(4096).await.unwrap();
                    writer.push(&[step as u8; 4096]);
                }
            }
        }
        for writer in &mut writers {
            writer.shutdown(Shutdown::PadTail).await.unwrap();
        }
        let in_memory = |writer: &BufferedWriter| writer.position() - writer.tail.read().start();
        let found = [in_memory(&writers[0]), in_memory(&writers[1])];
        for (writer, first) in writers.iter().zip([0u64, 512]) {
            let tail = writer.tail.read();
            for offset in (tail.start()..writer.position()).step_by(4096) {
                assert_eq!(tail.bytes_at(offset, 4096), [(first + offset / 4096) as u8; 4096], "{offset}");
            }
            let written = std::fs::read(writer.file().path()).unwrap();
            assert!((0..1024).all(|step| written[step * 4096..][..4096] == [(first + step as u64) as u8; 4096]));
        }
        let used = shared.used();
        drop(writers);
        assert_eq!(shared.used(), 0, "what is not given back is lost for others");
        (found, used)
    }

    #[tokio::test]
    async fn all_is_kept_while_there_is_memory_and_then_the_newest() {
        const MIB: u64 = 1 << 20;
        for holds in [false, true] {
            let (found, used) = kept(8 * MIB, holds).await;
            assert_eq!((found, used), ([4 * MIB; 2], 8 * MIB));
            let (found, used) = kept(6 * MIB, holds).await;
            assert!(found.contains(&(4 * MIB)) && found.iter().any(|bytes| *bytes <= MIB), "{found:?}");
            assert_eq!(used, 4 * MIB, "what one could not use the other one has");
            let (found, used) = kept(0, holds).await;
            assert!(found.iter().all(|bytes| *bytes <= MIB) && used == 0, "{found:?}");
        }
    }

    #[tokio::test]
    async fn what_is_held_back_is_written_when_memory_ends_or_on_request() {
        const MIB: usize = 1 << 20;
        for (limit, file_size) in [(16 * MIB, 0), (3 * MIB, 8 * MIB)] {
            let dir = camino_tempfile::tempdir().unwrap();
            let shared = Arc::new(KeptMemory::new(limit as u64));
            let path = dir.path().join("file");
            let mut writer =
                BufferedWriter::new(Arc::new(VirtualFile::open(&path, OpenMode::CreateNew).await.unwrap()), 0);
            writer.keep_all(Arc::clone(&shared));
            writer.hold();
            let mut in_flight = 0;
            for step in 0..2048u32 {
                writer.reserve(4096).await.unwrap();
                writer.push(&step.to_le_bytes().repeat(1024));
                in_flight = in_flight.max(writer.writes.iter().filter(|it| !matches!(it, WriteState::Held)).count());
            }
            assert!(in_flight <= IN_FLIGHT_MAX, "{in_flight}");
            assert_eq!(writer.holds, file_size == 0);
            assert_eq!(in_flight > 0, file_size > 0, "nothing is written without need");
            assert_eq!(writer.position(), 8 * MIB as u64);
            assert!(shared.used() <= limit as u64);
            writer.release();
            writer.shutdown(Shutdown::PadTail).await.unwrap();
            let written = std::fs::read(&path).unwrap();
            assert_eq!(written.len(), 8 * MIB);
            assert!(written.chunks(4096).zip(0u32..).all(|(chunk, step)| chunk == step.to_le_bytes().repeat(1024)));
        }
    }

    #[tokio::test]
    async fn a_writer_that_gives_way_writes_small_pieces_one_at_a_time() {
        let dir = camino_tempfile::tempdir().unwrap();
        let (in_flight, piece, usual) = written(&dir.path().join("usual"), false).await;
        assert!(in_flight > 1 && piece == BUFFER_MAX, "{in_flight} of {piece}");
        let (in_flight, piece, modest) = written(&dir.path().join("modest"), true).await;
        assert_eq!((in_flight, piece), (1, BUFFER_GIVING_WAY));
        assert_eq!(modest.len(), 4 << 20);
        assert!(usual == modest, "the files differ");
    }
}
