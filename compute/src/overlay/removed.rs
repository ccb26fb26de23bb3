//! The file `removed`: node numbers of the manifest's removed files, in the order of removal.
//!
//! Each record is a number (u64) and its CRC-32C (u32), little-endian. A record with a wrong checksum ends the log:
//! it was being written when power failed, and was never acknowledged.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::private::Trust;

const RECORD: usize = 12;

pub(crate) struct Removed {
    file: File,
    ids: HashSet<u64>,
    dirty: bool,
}

impl Removed {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let mut file = Trust::me().open(path, File::options().read(true).write(true).create(true))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let ids = bytes.chunks_exact(RECORD).map_while(decode).collect();
        Ok(Self { file, ids, dirty: true })
    }

    pub(crate) fn contains(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    pub(crate) fn append(&mut self, id: u64) -> io::Result<()> {
        if self.ids.contains(&id) {
            return Ok(());
        }
        let mut record = [0; RECORD];
        record[..8].copy_from_slice(&id.to_le_bytes());
        record[8..].copy_from_slice(&utils::crc32c::crc32c(&id.to_le_bytes()).to_le_bytes());
        self.file.write_all_at(&record, (self.ids.len() * RECORD) as u64)?;
        self.ids.insert(id);
        self.dirty = true;
        Ok(())
    }

    pub(crate) fn sync(&mut self) -> io::Result<()> {
        if self.dirty {
            self.file.sync_data()?;
            self.dirty = false;
        }
        Ok(())
    }
}

fn decode(record: &[u8]) -> Option<u64> {
    let (id, crc) = record.split_first_chunk::<8>()?;
    (crc == utils::crc32c::crc32c(id).to_le_bytes()).then_some(u64::from_le_bytes(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_torn_end_is_written_over() {
        let dir = camino_tempfile::tempdir().unwrap();
        let path = dir.path().join("removed").into_std_path_buf();
        let mut log = Removed::open(&path).unwrap();
        for id in [3, 4, 3, 5] {
            log.append(id).unwrap();
        }
        log.sync().unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 36);
        File::options().write(true).open(&path).unwrap().set_len(30).unwrap();
        let mut log = Removed::open(&path).unwrap();
        assert_eq!([3, 4, 5].map(|id| log.contains(id)), [true, true, false]);
        log.append(9).unwrap();
        let log = Removed::open(&path).unwrap();
        assert_eq!([3, 4, 5, 9].map(|id| log.contains(id)), [true, true, false, true]);
    }
}
