//! The WAL segment files of a directory, in order.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use postgres_formats::version::PgVersion;
use postgres_formats::wal_file::{parse_segment_file_name, segment_file_name};
use postgres_formats::wal_page::{LONG_HEADER_SIZE, WAL_PAGE_SIZE, WalPageContext, WalPageHeader};
use tokio::sync::mpsc;
use utils::lsn::Lsn;

/// Bytes read at once.
const PIECE_BYTES: u64 = 1 << 20;
/// Pieces read ahead.
const PIECES_AHEAD: usize = 4;

/// The segment files of a directory.
#[derive(Clone, Debug)]
pub struct WalFiles {
    dir: Utf8PathBuf,
    segment_size: u32,
    /// By segment number. If several WAL timelines have a segment, the newest one counts.
    segments: BTreeMap<u64, (u32, Utf8PathBuf)>,
}

/// Consecutive bytes of WAL.
#[derive(Debug)]
pub struct Piece {
    /// LSN of the first byte.
    pub lsn: Lsn,
    /// The bytes.
    pub bytes: Bytes,
}

impl WalFiles {
    /// Lists a directory, which must contain segment files.
    pub fn open(dir: &Utf8Path, segment_size: u32) -> anyhow::Result<Self> {
        let mut segments = BTreeMap::new();
        for entry in dir.read_dir_utf8().with_context(|| format!("cannot list WAL directory {dir}"))? {
            let entry = entry.with_context(|| format!("cannot list WAL directory {dir}"))?;
            let Some((timeline, number)) = parse_segment_file_name(entry.file_name(), segment_size) else { continue };
            let newest = segments.entry(number).or_insert_with(|| (timeline, entry.path().to_owned()));
            if timeline > newest.0 {
                *newest = (timeline, entry.path().to_owned());
            }
        }
        if segments.is_empty() {
            bail!("no WAL segment files in {dir}");
        }
        Ok(Self { dir: dir.to_owned(), segment_size, segments })
    }

    fn number(&self, lsn: Lsn) -> u64 {
        lsn.segment_number(self.segment_size.into())
    }

    /// The file that contains `lsn`, if it exists.
    pub fn path(&self, lsn: Lsn) -> Option<&Utf8Path> {
        self.segments.get(&self.number(lsn)).map(|(_, path)| path.as_path())
    }

    /// Number of bytes from `lsn` to the end of the last file before a gap.
    pub fn bytes_from(&self, lsn: Lsn) -> u64 {
        let files = (self.number(lsn)..).take_while(|number| self.segments.contains_key(number)).count() as u64;
        (files * u64::from(self.segment_size)).saturating_sub(lsn.segment_offset(self.segment_size.into()))
    }

    /// Reads from the segment of `from` on, ahead of the consumer of the pieces. The stream ends where no file
    /// follows. A gap before later files is an error, and so is a file that is shorter or longer than a segment.
    pub fn read(&self, from: Lsn) -> mpsc::Receiver<anyhow::Result<Piece>> {
        let (sender, receiver) = mpsc::channel(PIECES_AHEAD);
        let files = self.clone();
        env::spawn::blocking(move || {
            if let Err(error) = files.send_all(from, &sender) {
                // If nobody is listening any more, nobody needs the error.
                let _ = sender.blocking_send(Err(error));
            }
        });
        receiver
    }

    fn send_all(&self, from: Lsn, sender: &mpsc::Sender<anyhow::Result<Piece>>) -> anyhow::Result<()> {
        let first = self.number(from);
        for number in first.. {
            let Some((_, path)) = self.segments.get(&number) else {
                return self.check_no_gap(number, from);
            };
            if !self.send_segment(number, path, sender)? {
                break;
            }
        }
        Ok(())
    }

    /// Fails if later segments exist. A missing segment is fine at the end of the WAL, unless `from` lies inside it.
    fn check_no_gap(&self, number: u64, from: Lsn) -> anyhow::Result<()> {
        let starts_here = number == self.number(from);
        let boundary = from.segment_offset(self.segment_size.into()) == 0;
        let later = self.segments.range(number..).next().map(|(_, (_, path))| path);
        let name = |timeline| segment_file_name(timeline, number, self.segment_size);
        match later {
            Some(later) => {
                let timeline = self.segments.values().next().map_or(1, |(timeline, _)| *timeline);
                Err(anyhow!("WAL segment {} is missing in {}, but {later} is there", name(timeline), self.dir))
            }
            None if starts_here && !boundary => {
                let timeline = self.segments.values().next_back().map_or(1, |(timeline, _)| *timeline);
                Err(anyhow!("WAL segment {}, which has LSN {from}, is missing in {}", name(timeline), self.dir))
            }
            None => Ok(()),
        }
    }

    /// Returns false if the consumer is gone.
    fn send_segment(
        &self,
        number: u64,
        path: &Utf8Path,
        sender: &mpsc::Sender<anyhow::Result<Piece>>,
    ) -> anyhow::Result<bool> {
        let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
        let (len, size) = (file.metadata().with_context(|| format!("cannot stat {path}"))?.len(), self.segment_size);
        if len != u64::from(size) {
            bail!("{path} ends at offset {len}, but segments have {size} bytes");
        }
        let start = Lsn(number * u64::from(size));
        for offset in (0..len).step_by(PIECE_BYTES as usize) {
            let piece_len = PIECE_BYTES.min(len - offset);
            let mut bytes = Vec::with_capacity(piece_len as usize);
            let read = (&file).take(piece_len).read_to_end(&mut bytes);
            let read = read.with_context(|| format!("cannot read {path} at offset {offset}"))?;
            if read as u64 != piece_len {
                bail!("{path} ends at offset {}, but segments have {size} bytes", offset + read as u64);
            }
            let piece = Piece { lsn: Lsn(start.0 + offset), bytes: bytes.into() };
            if sender.blocking_send(Ok(piece)).is_err() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The first page after `lsn` that is a valid page of this WAL at its own address. If there is one, the WAL
    /// continues there, so what is at `lsn` is damage and not the end. Recycled files contain pages with lower
    /// addresses.
    pub fn continues_after(&self, lsn: Lsn, version: PgVersion) -> anyhow::Result<Option<Lsn>> {
        let context =
            WalPageContext { version, segment_size: self.segment_size, system_identifier: None, timeline: None };
        let segment = self.number(lsn);
        for (number, (_, path)) in self.segments.range(segment..) {
            let start = Lsn(number * u64::from(self.segment_size));
            let pages = if *number == segment { u64::from(self.segment_size) / WAL_PAGE_SIZE as u64 } else { 1 };
            let file = File::open(path).with_context(|| format!("cannot open {path}"))?;
            for page in 0..pages {
                let address = Lsn(start.0 + page * WAL_PAGE_SIZE as u64);
                let mut header = [0; LONG_HEADER_SIZE];
                let readable = file.read_exact_at(&mut header, address.0 - start.0).is_ok();
                let valid = |header: WalPageHeader| header.check(address, &context).is_ok();
                if address > lsn && readable && WalPageHeader::decode(&header).is_ok_and(valid) {
                    return Ok(Some(address));
                }
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
