//! Parses a tar archive that arrives in pieces of any size.
//!
//! Postgres writes plain `ustar` (`port/tar.c`): one header block per file, names of less than 100 bytes, sizes below
//! 8 GiB, contents padded to whole blocks. The two zero blocks at the end are not always sent.

use bytes::{Buf, Bytes};
use tar::{EntryType, Header};

const BLOCK: usize = 512;

/// An item of an archive.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum TarEvent {
    /// A file begins; its whole content follows.
    File {
        /// Its name in the archive.
        path: String,
        /// Its size in bytes.
        size: u64,
    },
    /// The next bytes of the file.
    Data(Bytes),
    /// The file is complete.
    End,
}

/// The archive is malformed.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("at byte {offset} of the archive: {reason}")]
pub(super) struct TarError {
    pub(super) offset: u64,
    pub(super) reason: String,
}

#[derive(Debug)]
enum State {
    Header,
    Content { left: u64, padding: usize },
    Padding { left: usize },
    Zeros,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct TarReader {
    state: State,
    input: Bytes,
    header: Vec<u8>,
    /// Number of bytes consumed.
    offset: u64,
}

impl Default for TarReader {
    fn default() -> Self {
        Self { state: State::Header, input: Bytes::new(), header: Vec::with_capacity(BLOCK), offset: 0 }
    }
}

impl TarReader {
    /// Adds the next bytes. All events of the previous ones must have been taken.
    pub(super) fn push(&mut self, bytes: Bytes) {
        debug_assert!(self.input.is_empty(), "events are left");
        self.input = bytes;
    }

    /// The next event; `None` if more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<TarEvent>, TarError> {
        loop {
            match self.state {
                State::Content { left: 0, padding } => {
                    self.state = State::Padding { left: padding };
                    return Ok(Some(TarEvent::End));
                }
                State::Padding { left: 0 } => self.state = State::Header,
                _ if self.input.is_empty() => return Ok(None),
                State::Header => {
                    if let Some(event) = self.header()? {
                        return Ok(Some(event));
                    }
                }
                State::Content { left, padding } => {
                    let data = self.take(usize::try_from(left).unwrap_or(usize::MAX));
                    self.state = State::Content { left: left - data.len() as u64, padding };
                    return Ok(Some(TarEvent::Data(data)));
                }
                State::Padding { left } => {
                    let skipped = self.take(left).len();
                    self.state = State::Padding { left: left - skipped };
                }
                State::Zeros => {
                    if let Some(at) = self.input.iter().position(|byte| *byte != 0) {
                        return Err(self.error(at as u64, "something follows the end of the archive"));
                    }
                    self.take(usize::MAX);
                }
            }
        }
    }

    /// Fails if the archive ends in the middle of a file.
    pub(super) fn finish(&self) -> Result<(), TarError> {
        match self.state {
            State::Zeros | State::Padding { left: 0 } => Ok(()),
            State::Header if self.header.is_empty() => Ok(()),
            _ => Err(self.error(0, "the archive ends in the middle of a file")),
        }
    }

    fn take(&mut self, len: usize) -> Bytes {
        let taken = self.input.split_to(len.min(self.input.len()));
        self.offset += taken.len() as u64;
        taken
    }

    fn header(&mut self) -> Result<Option<TarEvent>, TarError> {
        let part = self.take(BLOCK - self.header.len());
        self.header.extend_from_slice(part.chunk());
        let Some(block) = self.header.first_chunk::<BLOCK>() else { return Ok(None) };
        let block = *block;
        self.header.clear();
        if block.iter().all(|byte| *byte == 0) {
            self.state = State::Zeros;
            return Ok(None);
        }
        let entry = parse(&block).map_err(|reason| TarError { offset: self.offset - BLOCK as u64, reason })?;
        let Some((path, size)) = entry else { return Ok(None) };
        let padding = (size.next_multiple_of(BLOCK as u64) - size) as usize;
        self.state = State::Content { left: size, padding };
        Ok(Some(TarEvent::File { path, size }))
    }

    fn error(&self, further: u64, reason: &str) -> TarError {
        TarError { offset: self.offset + further, reason: reason.to_owned() }
    }
}

/// Parses the name and size of a file; `None` for a directory or a link.
fn parse(block: &[u8; BLOCK]) -> Result<Option<(String, u64)>, String> {
    let mut header = Header::new_old();
    header.as_mut_bytes().copy_from_slice(block);
    // The checksum counts its own field as blanks.
    let sum: u32 =
        block.iter().enumerate().map(|(at, byte)| if (148..156).contains(&at) { 32 } else { u32::from(*byte) }).sum();
    if header.cksum().ok() != Some(sum) {
        return Err("no valid header of a file".to_owned());
    }
    let path = String::from_utf8(header.path_bytes().into_owned()).map_err(|_| "a name is no UTF-8".to_owned())?;
    match header.entry_type() {
        EntryType::Regular => {}
        EntryType::Directory | EntryType::Symlink | EntryType::Link => return Ok(None),
        other => return Err(format!("{path:?} is of the unknown type {other:?}")),
    }
    let size = header.entry_size().ok().filter(|size| *size < 8 << 30);
    let size = size.ok_or_else(|| format!("the size of {path:?} makes no sense"))?;
    let inside = !path.is_empty() && path.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if inside { Ok(Some((path, size))) } else { Err(format!("the name {path:?} makes no sense")) }
}

#[cfg(test)]
mod tests;
