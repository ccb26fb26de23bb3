//! WAL recorded by `record_wal.py`: its records, and the pages that they change in their prior state.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use postgres_formats::control_file::ControlFile;
use postgres_formats::heap::implicit_vm_clears;
use postgres_formats::record::{BlockRef, DecodedRecord, RelFile, decode};
use redo::{Applied, Chain, RedoContext, RedoError, vm};
use utils::lsn::Lsn;
use wal_decoder::stream::{WalError, WalRecord, WalStart, WalStreamConfig, WalStreamDecoder};

pub type Page = [u8; 8192];

/// Relation, fork, block number.
pub type PageName = (RelFile, u8, u32);

/// Blocks per file (1 GiB).
const BLOCKS_PER_FILE: u32 = 131_072;
const VM_FORK: u8 = 2;

/// A directory with `base` and `wal`.
pub struct Recorded {
    pub ctx: RedoContext,
    dir: PathBuf,
    start: Lsn,
    segment_size: u32,
}

impl Recorded {
    pub fn open(dir: &Path) -> Self {
        let control = fs::read(dir.join("base/global/pg_control")).expect("base has a control file");
        let control = ControlFile::decode(&control).expect("the control file is right");
        let fields = control.fields;
        let ctx = RedoContext {
            version: control.version,
            data_checksums: fields.data_checksum_version != 0,
            wal_log_hints: fields.wal_log_hints,
        };
        Self { ctx, dir: dir.to_owned(), start: fields.checkpoint, segment_size: fields.wal_segment_size }
    }

    /// The segments' files, in order.
    pub fn segments(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.join("wal")).expect("wal is a directory");
        let mut segments: Vec<_> = entries.map(|entry| entry.expect("wal can be read").path()).collect();
        segments.sort();
        let first = self.start.0 / u64::from(self.segment_size);
        let per_id = 0x1_0000_0000 / u64::from(self.segment_size);
        let first = format!("{:08X}{:08X}{:08X}", 1, first / per_id, first % per_id);
        segments.retain(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes() >= first.as_bytes()));
        segments
    }

    /// All segments' bytes.
    pub fn read_wal(&self) -> Vec<Bytes> {
        self.segments().into_iter().map(|path| Bytes::from(fs::read(path).expect("a segment can be read"))).collect()
    }

    /// The records in `wal`.
    pub fn decode_wal(&self, wal: &[Bytes]) -> Vec<WalRecord> {
        let config = WalStreamConfig {
            version: self.ctx.version,
            segment_size: self.segment_size,
            system_identifier: None,
            feed_from: Lsn(self.start.0 / u64::from(self.segment_size) * u64::from(self.segment_size)),
            start: WalStart::Record { lsn: self.start, previous: None },
        };
        let mut decoder = WalStreamDecoder::new(&config).expect("the checkpoint is a place for a record");
        let mut records = Vec::new();
        for segment in wal {
            decoder.feed(segment.clone());
            loop {
                match decoder.next() {
                    Ok(Some(record)) => records.push(record),
                    Ok(None) => break,
                    Err(WalError::EndOfWal { .. }) => return records,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        records
    }

    /// The pages before the first record.
    pub fn pages(&self) -> Pages {
        Pages { base: self.dir.join("base"), files: HashMap::new(), pages: HashMap::new() }
    }

    /// Applies `records` to the pages they change, after showing each to `see` with the page before it. Returns the
    /// number of blocks changed and the errors.
    pub fn replay(
        &self,
        records: &[WalRecord],
        mut see: impl FnMut(&DecodedRecord<'_>, &BlockRef<'_>, &Page, u64),
    ) -> (u64, Vec<RedoError>) {
        let (mut pages, mut changed, mut errors) = (self.pages(), 0, Vec::new());
        for WalRecord { bytes, end, .. } in records {
            let record = decode(self.ctx.version, bytes).expect("the stream's records are whole");
            for block in &record.blocks {
                let name = (block.rel, block.fork, block.blkno);
                let page = pages.take(name);
                see(&record, block, &page, end.0);
                match Chain::new(page).apply(&self.ctx, &record, block.id, end.0) {
                    Ok((chain, applied)) => {
                        changed += u64::from(applied == Applied::Changed);
                        pages.put(name, chain.into_page());
                    }
                    Err(error) => errors.push(error),
                }
            }
            pages.clear_vm_bits(&record);
        }
        (changed, errors)
    }
}

/// Pages in memory, read from the data directory on first use.
pub struct Pages {
    base: PathBuf,
    files: HashMap<(RelFile, u8, u32), Option<File>>,
    pages: HashMap<PageName, Box<Page>>,
}

impl Pages {
    /// Takes the page out, all zero if there is none; [`put`](Self::put) returns it.
    pub fn take(&mut self, name: PageName) -> Box<Page> {
        self.pages.remove(&name).unwrap_or_else(|| self.read(name))
    }

    pub fn put(&mut self, name: PageName, page: Box<Page>) {
        self.pages.insert(name, page);
    }

    /// Heap records clear map bits through flags, unless the map is among their blocks.
    pub fn clear_vm_bits(&mut self, record: &DecodedRecord<'_>) {
        let Ok(clears) = implicit_vm_clears(record) else { return };
        for clear in clears {
            let name = (clear.rel, VM_FORK, vm::position(clear.heap_blkno).page);
            let mut page = self.take(name);
            vm::clear_bits(&mut page, clear.heap_blkno, clear.bits);
            self.put(name, page);
        }
    }

    fn read(&mut self, (rel, fork, blkno): PageName) -> Box<Page> {
        let number = blkno / BLOCKS_PER_FILE;
        let base = &self.base;
        let file = self.files.entry((rel, fork, number)).or_insert_with(|| {
            let dir = match rel.spc {
                1663 => format!("base/{}", rel.db),
                1664 => "global".to_owned(),
                _ => return None,
            };
            let fork = ["", "_fsm", "_vm", "_init"].get(usize::from(fork))?;
            let suffix = if number == 0 { String::new() } else { format!(".{number}") };
            File::open(base.join(dir).join(format!("{}{fork}{suffix}", rel.rel))).ok()
        });
        let mut page = Box::new([0; 8192]);
        let offset = u64::from(blkno % BLOCKS_PER_FILE) * 8192;
        if let Some(file) = file
            && file.read_exact_at(&mut page[..], offset).is_err()
        {
            page.fill(0);
        }
        page
    }
}
