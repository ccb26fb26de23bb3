//! Pages in the files of a data directory.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use postgres_formats::record::RelFile;

pub type Page = [u8; 8192];

/// Name of a page: relation, fork, block number.
pub type PageName = (RelFile, u8, u32);

/// Blocks per file (1 GiB).
const BLOCKS_PER_FILE: u32 = 131_072;

pub struct DataDir {
    path: PathBuf,
    open: HashMap<(RelFile, u8, u32), Option<File>>,
}

impl DataDir {
    pub fn new(path: PathBuf) -> Self {
        Self { path, open: HashMap::new() }
    }

    /// The page, if its file exists and is long enough. Tablespaces besides the two built-in ones are not looked at.
    pub fn read(&mut self, (rel, fork, blkno): PageName) -> Option<Box<Page>> {
        let number = blkno / BLOCKS_PER_FILE;
        let path = &self.path;
        let file = self.open.entry((rel, fork, number)).or_insert_with(|| {
            let dir = match rel.spc {
                1663 => format!("base/{}", rel.db),
                1664 => "global".to_owned(),
                _ => return None,
            };
            let fork = ["", "_fsm", "_vm", "_init"][usize::from(fork)];
            let suffix = if number == 0 { String::new() } else { format!(".{number}") };
            File::open(path.join(dir).join(format!("{}{fork}{suffix}", rel.rel))).ok()
        });
        let mut page = Box::new([0; 8192]);
        let offset = u64::from(blkno % BLOCKS_PER_FILE) * 8192;
        file.as_ref()?.read_exact_at(&mut page[..], offset).ok()?;
        Some(page)
    }
}
