//! The file `catalog/blocks`: blocks from the boot image, so that a first query need not fetch them.
//!
//! Block images back to back, then the index: for each image tablespace, database, relation, block number (u32 each),
//! fork (u8) and CRC-32C of the image (u32); then count (u32), CRC-32C (u32) of index and count, and `PSCATA01`. All
//! integers are little-endian. A damaged image is not served: the source has it too.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::BLOCK;
use crate::private::Trust;
use crate::source::{PageSource, RelFork, RelationFile, SourceError};

const MAGIC: &[u8; 8] = b"PSCATA01";
const ENTRY: usize = 21;
const FOOTER: usize = 16;

/// Writes a catalog.
pub struct CatalogWriter {
    file: BufWriter<File>,
    index: Vec<u8>,
    count: u32,
}

impl CatalogWriter {
    /// Starts the catalog at `path`.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self {
            file: BufWriter::new(Trust::me().open(path, File::options().write(true).create(true).truncate(true))?),
            index: Vec::new(),
            count: 0,
        })
    }

    /// Adds block `block` of `rel`; `image` must have 8192 bytes.
    pub fn add(&mut self, rel: RelFork, block: u32, image: &[u8]) -> io::Result<()> {
        if image.len() != BLOCK {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a block has 8192 bytes"));
        }
        self.file.write_all(image)?;
        for number in [rel.spc, rel.db, rel.rel, block] {
            self.index.extend(number.to_le_bytes());
        }
        self.index.push(rel.fork);
        self.index.extend(utils::crc32c::crc32c(image).to_le_bytes());
        self.count += 1;
        Ok(())
    }

    /// Completes the catalog and makes it durable.
    pub fn finish(mut self) -> io::Result<()> {
        self.index.extend(self.count.to_le_bytes());
        self.file.write_all(&self.index)?;
        self.file.write_all(&utils::crc32c::crc32c(&self.index).to_le_bytes())?;
        self.file.write_all(MAGIC)?;
        self.file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
    }
}

/// For each block its position among the images, and its checksum.
type Index = HashMap<(RelFork, u32), (u32, u32)>;

/// A readable catalog.
pub struct Catalog {
    file: File,
    index: Index,
}

impl Catalog {
    /// Opens the catalog at `path`.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = Trust::me().open(path, File::options().read(true))?;
        let index = read_index(&file)?.ok_or_else(|| {
            let text = format!("{}: not a catalog, or damaged", path.display());
            io::Error::new(io::ErrorKind::InvalidData, text)
        })?;
        Ok(Self { file, index })
    }

    /// The number of blocks.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether the catalog is empty.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// Reads a block into `out`; returns whether it was there and undamaged.
    pub fn read(&self, rel: RelFork, block: u32, out: &mut [u8]) -> bool {
        let Some((at, crc)) = self.index.get(&(rel, block)) else { return false };
        self.file.read_exact_at(out, u64::from(*at) * BLOCK as u64).is_ok() && utils::crc32c::crc32c(out) == *crc
    }
}

/// `None` if the file is not a catalog.
fn read_index(file: &File) -> io::Result<Option<Index>> {
    let size = file.metadata()?.len();
    let Some(footer_at) = size.checked_sub(FOOTER as u64) else { return Ok(None) };
    let mut footer = [0; FOOTER];
    file.read_exact_at(&mut footer, footer_at)?;
    let [n0, n1, n2, n3, c0, c1, c2, c3, magic @ ..] = footer;
    let (count, crc) = (u32::from_le_bytes([n0, n1, n2, n3]), u32::from_le_bytes([c0, c1, c2, c3]));
    let index_size = count as usize * ENTRY;
    if magic != *MAGIC || size != (count as usize * BLOCK + index_size + FOOTER) as u64 {
        return Ok(None);
    }
    let mut bytes = vec![0; index_size + 4];
    file.read_exact_at(&mut bytes, footer_at - index_size as u64)?;
    if utils::crc32c::crc32c(&bytes) != crc {
        return Ok(None);
    }
    let entries = bytes[..index_size].chunks_exact(ENTRY).zip(0..);
    Ok(Some(entries.map(|(entry, at)| decode(entry, at)).collect()))
}

fn decode(entry: &[u8], at: u32) -> ((RelFork, u32), (u32, u32)) {
    let number = |from: usize| u32::from_le_bytes([entry[from], entry[from + 1], entry[from + 2], entry[from + 3]]);
    let rel = RelFork { spc: number(0), db: number(4), rel: number(8), fork: entry[16] };
    ((rel, number(12)), (at, number(17)))
}

/// A source that looks into a catalog first.
pub struct CatalogFirst<S> {
    catalog: Option<Catalog>,
    source: S,
}

impl<S> CatalogFirst<S> {
    /// Tries `catalog`, then `source`.
    pub fn new(catalog: Option<Catalog>, source: S) -> Self {
        Self { catalog, source }
    }
}

impl<S: PageSource> PageSource for CatalogFirst<S> {
    async fn manifest(&self) -> Result<Vec<RelationFile>, SourceError> {
        self.source.manifest().await
    }

    /// Blocks missing from the catalog are requested in contiguous runs.
    async fn read_blocks(&self, rel: RelFork, first: u32, count: u32, out: &mut [u8]) -> Result<(), SourceError> {
        let Some(catalog) = &self.catalog else { return self.source.read_blocks(rel, first, count, out).await };
        let mut missing: Option<(u32, u32)> = None;
        for at in 0..count {
            let block = slice(out, at, 1);
            if !catalog.read(rel, first + at, block) {
                missing = Some((missing.map_or(at, |(from, _)| from), at + 1));
            } else if let Some((from, until)) = missing.take() {
                let run = slice(out, from, until - from);
                self.source.read_blocks(rel, first + from, until - from, run).await?;
            }
        }
        let Some((from, until)) = missing else { return Ok(()) };
        self.source.read_blocks(rel, first + from, until - from, slice(out, from, until - from)).await
    }
}

fn slice(out: &mut [u8], from: u32, count: u32) -> &mut [u8] {
    &mut out[from as usize * BLOCK..(from + count) as usize * BLOCK]
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fives;

    impl PageSource for Fives {
        async fn manifest(&self) -> Result<Vec<RelationFile>, SourceError> {
            Ok(Vec::new())
        }

        async fn read_blocks(&self, _: RelFork, _: u32, _: u32, out: &mut [u8]) -> Result<(), SourceError> {
            out.fill(5);
            Ok(())
        }
    }

    const REL: RelFork = RelFork { spc: 1663, db: 5, rel: 1259, fork: 0 };

    #[tokio::test]
    async fn serves_what_it_has_and_asks_for_the_rest() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let mut writer = CatalogWriter::create(path.as_std_path()).unwrap();
        for block in [1, 3] {
            writer.add(REL, block, &[block as u8; BLOCK]).unwrap();
        }
        writer.finish().unwrap();
        let catalog = Catalog::open(path.as_std_path()).unwrap();
        assert_eq!(catalog.len(), 2);
        let source = CatalogFirst::new(Some(catalog), Fives);
        let mut out = vec![0; 6 * BLOCK];
        source.read_blocks(REL, 0, 6, &mut out).await.unwrap();
        let seen: Vec<u8> = out.chunks(BLOCK).map(|block| block[100]).collect();
        assert_eq!(seen, [5, 1, 5, 3, 5, 5]);
    }

    /// Written by a version of November 2026; computes keep such files.
    #[test]
    fn the_first_format_is_read_and_written_for_ever() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let mut writer = CatalogWriter::create(path.as_std_path()).unwrap();
        writer.add(REL, 7, &[7; BLOCK]).unwrap();
        writer.finish().unwrap();
        let written = std::fs::read(&path).unwrap();
        let (image, tail) = written.split_at(BLOCK);
        assert!(image.iter().all(|byte| *byte == 7));
        let hex: String = tail.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "7f06000005000000eb0400000700000000805c34710100000030f6034b5053434154413031");
    }

    #[test]
    fn damage_is_seen() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("blocks");
        let mut writer = CatalogWriter::create(path.as_std_path()).unwrap();
        writer.add(REL, 7, &[7; BLOCK]).unwrap();
        writer.finish().unwrap();
        let whole = std::fs::read(&path).unwrap();
        for at in (0..whole.len()).step_by(61).chain(BLOCK..whole.len()) {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            std::fs::write(&path, &damaged).unwrap();
            let served = Catalog::open(path.as_std_path()).is_ok_and(|c| c.read(REL, 7, &mut [0; BLOCK]));
            assert!(!served, "byte {at}");
        }
    }
}
